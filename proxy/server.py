"""The two fronts of one proxy, gRPC and HTTP, in one event loop.

`start` binds both ports or fails; `stop` closes them after the core let its requests finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import grpc
import uvicorn

from proxy.access.gate import Gate
from proxy.access.key_store import KeyStore
from proxy.config import ProxyConfig
from proxy.core import Core
from proxy.fronts.grpc_server import build_server
from proxy.fronts.http_connection import HttpConnection
from proxy.fronts.http_server import build_app
from security.address import join_host_port
from security.connection import listen

CLOSE_S = 3.0
DATE_S = 1.0
ACCEPTED_AT_ONCE = 64  # connections in one turn of the loop, so that a flood of them leaves turns to others
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    grpc: str
    http: str


class QuietServer(uvicorn.Server):
    """Uvicorn without its own signal handling, since the process has one owner of signals, and it is not this; and
    without waking up ten times a second to see whether it should end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told_to_end = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(socket.SOMAXCONN)  # asyncio has set it to as many as it takes in one turn of the loop

    def end(self) -> None:
        self.should_exit = True
        self._told_to_end.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(counter=0):  # renews the Date header
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._told_to_end.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ProxyServer:
    def __init__(
        self, config: ProxyConfig, core: Core, keys: KeyStore | None = None, tls: grpc.ServerCredentials | None = None
    ) -> None:
        """Without `keys` everybody is let in; `tls`: of gRPC's port, while HTTP's is in the configuration."""
        self._tls = tls
        gate = Gate(keys, core.metrics)
        self._config = config
        self._core = core
        self._grpc, self._health = build_server(core.service, gate, config)
        self._http = QuietServer(
            uvicorn.Config(
                build_app(core.service, core.pool, core.watch, gate, config),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
                timeout_graceful_shutdown=int(CLOSE_S),
                http=partial(HttpConnection, config),  # type: ignore[arg-type]  # it makes one for each connection
                timeout_keep_alive=config.keep_alive_timeout_s,
                backlog=ACCEPTED_AT_ONCE,
            )
        )
        self._tasks: list[asyncio.Task[None]] = []  # the HTTP server first

    async def start(self) -> Addresses:
        """Raises OSError for a port that cannot be taken."""
        host = self._config.host
        with _naming("http_port"):
            http_socket = _listen(host, self._config.http_port)
        try:
            with _naming("grpc_port"):
                grpc_port = listen(self._grpc, join_host_port(host, self._config.grpc_port), self._tls)
        except OSError:
            http_socket.close()
            raise
        await self._health.set_ready(False)
        await self._grpc.start()
        self._tasks = [
            asyncio.create_task(self._http.serve([http_socket]), name="http"),
            asyncio.create_task(self._report_readiness(), name="health"),
            self._core.start(),
            asyncio.create_task(self._core.service.keep_history(), name="history"),
        ]
        return Addresses(join_host_port(host, grpc_port), join_host_port(host, http_socket.getsockname()[1]))

    async def stop(self) -> None:
        await self._core.stop()
        await self._grpc.stop(CLOSE_S)
        self._http.end()
        http, *others = self._tasks
        for task in others:
            task.cancel()
        await asyncio.gather(http, *others, return_exceptions=True)

    async def wait_failed(self) -> str:
        """Returns only when a part that must run for ever has ended, with the reason."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        return f"{task.get_name()} ended: {'cancelled' if task.cancelled() else task.exception()}"

    async def _report_readiness(self) -> None:
        was_ready = False
        while True:
            await self._core.ready_changed.wait()
            self._core.ready_changed.clear()
            is_ready = self._core.service.is_ready
            if is_ready != was_ready:
                logger.info("ready" if is_ready else "not ready: no worker can take a request")
                await self._health.set_ready(is_ready)
            was_ready = is_ready


@contextlib.contextmanager
def _naming(field: str) -> Iterator[None]:
    """Whoever reads what a failed start said knows the setting by its name."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{error} (proxy.{field}): end who has it, or set another port") from error


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(socket.SOMAXCONN)  # who comes before the server runs waits, and is not refused
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {join_host_port(host, port)}: {error.strerror}") from error
    return listener
