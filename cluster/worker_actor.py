"""The Ray actor of one worker or pool node: starts it, answers for it, and lets its death be seen.

`watch` returns only when the worker cannot go on; a caller that awaits it learns of a killed process at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.actor_process import log_file, log_to
from cluster.launcher import WorkerReport
from cluster.membership import Addresses
from cluster.nodes import listening_address, own_node
from cluster.spec import PoolNodeSpec, ProcessSpec

if TYPE_CHECKING:
    from cluster.pool_process import PoolNodeProcess
    from cluster.worker import Worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a new controller must know of a worker that it did not start."""

    spec: ProcessSpec
    num_restarts: int
    node: str  # Ray's id of it
    addresses: Addresses | None  # None: it never became ready
    is_draining: bool


class WorkerActor:
    """Maintains one `Worker` or `PoolNodeProcess`, from its start to its stop; another start is another actor."""

    def __init__(self, spec: ProcessSpec, num_restarts: int, log_dir: str) -> None:
        log_to(log_file(log_dir, spec.name), spec.logs)
        logger.info("%s (%s) starts in process %d", spec.name, spec.incarnation, os.getpid())
        self._spec = spec.model_copy(update={"host": listening_address(spec.host)})
        self._num_restarts = num_restarts
        self._worker: Worker | PoolNodeProcess | None = None
        self._addresses: Addresses | None = None
        self._is_draining = False

    async def start(self) -> Addresses:
        """Raises what `Worker.start` does; the log keeps where."""
        try:
            self._worker = (await asyncio.to_thread(_import_process, self._spec))()
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
        return await self._started.wait_failed()

    async def drain(self, timeout_s: float) -> int:
        self._is_draining = True
        return await self._started.drain(timeout_s)

    async def stop(self) -> None:
        logger.info("%s stops", self._spec.name)
        if self._worker is not None:
            await self._worker.stop()

    @property
    def _started(self) -> Worker | PoolNodeProcess:
        if self._worker is None:
            raise RuntimeError(f"{self._spec.name} is not started")
        return self._worker


def _import_process(spec: ProcessSpec) -> Callable[[], Worker | PoolNodeProcess]:
    """Imported only here, in the actor's own process: torch and NIXL take seconds and hundreds of megabytes."""
    if isinstance(spec, PoolNodeSpec):
        from cluster.pool_process import PoolNodeProcess

        return lambda: PoolNodeProcess(spec)
    from cluster.worker import Worker

    return lambda: Worker(spec)
