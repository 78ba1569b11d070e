"""Processes of workers that change their role: the model stays loaded in them, from one incarnation to the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container

from cluster.launcher import Launcher, ProcessLost, RunningWorker
from cluster.spec import ProcessSpec

RELEASE_TIMEOUT_S = 30.0
logger = logging.getLogger(__name__)


class KeptProcesses:
    """Maintains those that were released, by their worker's name, until they are taken over or ended."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._kept: dict[str, RunningWorker] = {}

    @property
    def all(self) -> list[RunningWorker]:
        return list(self._kept.values())

    def holds(self, worker: RunningWorker) -> bool:
        return self._kept.get(worker.spec.name) is worker

    async def release(self, worker: RunningWorker) -> None:
        """Ends the worker and keeps its process; one that cannot be released is stopped."""
        self._kept[worker.spec.name] = worker
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await worker.release()
        except (ProcessLost, TimeoutError) as error:
            logger.warning("%s could not leave its process to another: %s", worker.spec.name, error)
            if self.holds(worker):
                del self._kept[worker.spec.name]
            await worker.stop()

    def launch(self, spec: ProcessSpec, num_restarts: int) -> RunningWorker:
        """In the process that this name left, or in a new one. Raises NoPlaceError."""
        kept = self._kept.pop(spec.name, None)
        if kept is None:
            return self._launcher.launch(spec, num_restarts)
        return self._launcher.take_over(kept, spec, num_restarts)

    def drop_others(self, names: Container[str]) -> list[RunningWorker]:
        """Those whose names are not wanted any more; to be stopped by the caller."""
        return [self._kept.pop(name) for name in list(self._kept) if name not in names]
