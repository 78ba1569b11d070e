"""The Ray actor of one worker or pool node: starts it, answers for it, and lets its death be seen.

`watch` returns only when the worker cannot go on; a caller that awaits it learns of a killed process at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.actor_process import log_file, log_to
from cluster.launcher import WorkerReport
from cluster.membership import Addresses
from cluster.nodes import listening_address, own_node
from cluster.pool_node_spec import PoolNodeSpec
from cluster.spec import ProcessSpec
from kv_transfer.peer_address import PeerAddress

if TYPE_CHECKING:
    from cluster.pool_process import PoolNodeProcess
    from cluster.worker import Worker
    from engine.model import Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a new controller must know of a worker that it did not start."""

    spec: ProcessSpec
    num_restarts: int
    node: str  # Ray's id of it
    addresses: Addresses | None  # None: it never became ready
    is_draining: bool


class ReleasedError(Exception):
    """The worker has left its process to another one."""


class WorkerActor:
    """Maintains one `Worker` or `PoolNodeProcess` at a time; a worker that is released leaves its model to the next."""

    def __init__(self, spec: ProcessSpec, num_restarts: int, log_dir: str) -> None:
        log_to(log_file(log_dir, spec.name), spec.logs)
        logger.info("%s (%s) starts in process %d", spec.name, spec.incarnation, os.getpid())
        self._spec = spec.model_copy(update={"host": listening_address(spec.host)})
        self._num_restarts = num_restarts
        self._worker: Worker | PoolNodeProcess | None = None
        self._loaded: Model | None = None  # between `release` and the next start
        self._addresses: Addresses | None = None
        self._is_draining = False
        self._released = asyncio.Event()

    async def start(self) -> Addresses:
        """Raises what `Worker.start` does; the log keeps where."""
        try:
            self._worker = (await asyncio.to_thread(_import_process, self._spec, self._loaded))()
            self._loaded = None
            self._addresses = await self._worker.start()
            gc.freeze()  # what is loaded stays: collections need not walk it again
        except Exception:
            logger.exception("%s could not start", self._spec.name)
            raise
        return self._addresses

    async def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self._spec, self._num_restarts, own_node(), self._addresses, self._is_draining)

    async def describe(self) -> WorkerReport:
        return WorkerReport(os.getpid(), self._started.uptime_s, self._started.load())

    async def watch(self) -> str:
        """Raises ReleasedError when it was released."""
        failed = asyncio.create_task(self._started.wait_failed())
        released = asyncio.create_task(self._released.wait())
        await asyncio.wait((failed, released), return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        if failed.done():
            return failed.result()
        failed.cancel()
        raise ReleasedError(f"{self._spec.name} left its process to another")

    async def drain(self, timeout_s: float) -> int:
        self._is_draining = True
        return await self._started.drain(timeout_s)

    async def meet(self, peers: Sequence[PeerAddress]) -> None:
        await self._started_worker().meet(peers)

    async def release(self) -> None:
        """Stops the worker and keeps its model: `become` follows, or this process's end."""
        logger.info("%s (%s) leaves its process and its model to another", self._spec.name, self._spec.incarnation)
        worker, self._worker, self._addresses = self._started_worker(), None, None
        self._loaded = worker.model
        await worker.stop()
        del worker
        gc.unfreeze()  # what was frozen at its start is not needed any more
        gc.collect()  # its cache, before the next one is made
        self._released.set()

    async def become(self, spec: ProcessSpec, num_restarts: int) -> None:
        """After `release`: `start` starts this one."""
        logger.info("%s (%s) starts in process %d, as %s", spec.name, spec.incarnation, os.getpid(), spec.role)
        self._spec = spec.model_copy(update={"host": listening_address(spec.host)})
        self._num_restarts, self._is_draining = num_restarts, False
        self._released = asyncio.Event()

    async def stop(self) -> None:
        logger.info("%s stops", self._spec.name)
        if self._worker is not None:
            await self._worker.stop()

    @property
    def _started(self) -> Worker | PoolNodeProcess:
        if self._worker is None:
            raise RuntimeError(f"{self._spec.name} is not started")
        return self._worker

    def _started_worker(self) -> Worker:
        """Raises TypeError for a pool node, which neither meets nor becomes anybody."""
        from cluster.worker import Worker

        if not isinstance(self._started, Worker):
            raise TypeError(f"{self._spec.name} is a pool node")
        return self._started


def _import_process(spec: ProcessSpec, loaded: Model | None) -> Callable[[], Worker | PoolNodeProcess]:
    """Imported only here, in the actor's own process: torch and NIXL take seconds and hundreds of megabytes."""
    if isinstance(spec, PoolNodeSpec):
        from cluster.pool_process import PoolNodeProcess

        return lambda: PoolNodeProcess(spec)
    from cluster.worker import Worker

    return lambda: Worker(spec, loaded)
