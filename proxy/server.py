"""One proxy: both fronts and the links to controller and workers, in one event loop.

`start` binds both ports or fails; `stop` admits nothing more, lets streams finish within a limit, then closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from proxy.address import join_host_port
from proxy.config import ProxyConfig
from proxy.dispatcher import Dispatcher
from proxy.grpc_server import BindError, bind, build_server
from proxy.http_server import build_app
from proxy.membership import MembershipWatch
from proxy.metrics import ProxyMetrics
from proxy.model import ServedModel
from proxy.service import GenerationService
from proxy.worker_link import LinkTimes
from proxy.worker_pool import WorkerPool

CLOSE_S = 3.0
DEFAULT_TIMES = LinkTimes()
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    grpc: str
    http: str


class QuietServer(uvicorn.Server):
    """Uvicorn without its own signal handling: the process has one owner of signals, and it is not this."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ProxyServer:
    def __init__(
        self, config: ProxyConfig, model: ServedModel, controller: str, times: LinkTimes = DEFAULT_TIMES
    ) -> None:
        self._config = config
        incarnation = secrets.token_hex(16)
        self.metrics = ProxyMetrics(model.name)
        self.pool = WorkerPool(incarnation, times)
        self._dispatcher = Dispatcher(self.pool, config, self.metrics)
        self.service = GenerationService(model, config, self.pool, self._dispatcher, self.metrics)
        self._watch = MembershipWatch(controller, incarnation, lambda members: self.pool.update(members.members))
        self._grpc, self._health = build_server(self.service, config.max_body_bytes)
        self._http = QuietServer(
            uvicorn.Config(
                build_app(self.service, self.pool, config.max_body_bytes),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(CLOSE_S),
            )
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._was_ready = False
        self._readiness = asyncio.Event()  # changed, and not yet reported

    async def start(self) -> Addresses:
        """Raises BindError."""
        host = self._config.host
        http_socket = _listen(host, self._config.http_port)
        try:
            grpc_port = bind(self._grpc, join_host_port(host, self._config.grpc_port))
        except BindError:
            http_socket.close()
            raise
        await self._health.set_ready(False)
        await self._grpc.start()
        self.pool.subscribe(self._on_workers)
        self._tasks = [
            asyncio.create_task(self._http.serve([http_socket]), name="http"),
            asyncio.create_task(self._watch.run(), name="membership"),
            asyncio.create_task(self._report_health(), name="health"),
        ]
        return Addresses(join_host_port(host, grpc_port), join_host_port(host, http_socket.getsockname()[1]))

    async def stop(self) -> None:
        self.service.is_draining = True
        self._on_workers()
        await self.service.drain(self._config.drain_timeout_s)
        await self._grpc.stop(CLOSE_S)
        self._http.should_exit = True
        http, *others = self._tasks
        for task in others:
            task.cancel()
        await asyncio.gather(http, *others, return_exceptions=True)
        await self.pool.close()
        self.service.close()

    async def wait_failed(self) -> str:
        """Returns only when a part that must run for ever has ended, with the reason."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        return f"{task.get_name()} ended: {task.exception() if not task.cancelled() else 'cancelled'}"

    async def _report_health(self) -> None:
        while True:
            await self._readiness.wait()
            self._readiness.clear()
            await self._health.set_ready(self._was_ready)

    def _on_workers(self) -> None:
        self._dispatcher.pump()
        is_ready = self.service.is_ready
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            logger.info("ready" if is_ready else "not ready: no worker can take a request")
            self._readiness.set()


def _listen(host: str, port: int) -> socket.socket:
    """Raises BindError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BindError(f"cannot listen on {join_host_port(host, port)}: {error.strerror}") from error
    return listener
