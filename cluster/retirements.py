"""Workers that are taken out: each drains for as long as it may, then is stopped, or leaves its process to another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from cluster.fleet_action import Retire
from cluster.kept_processes import KeptProcesses
from cluster.launcher import ProcessLost, RunningWorker

DRAIN_MARGIN_S = 10.0  # for a drain's own answer
logger = logging.getLogger(__name__)


class Retirements:
    """Maintains one task per incarnation that leaves, however often it is asked to."""

    def __init__(
        self,
        running: Mapping[str, RunningWorker],
        kept: KeptProcesses,
        goes_on: Callable[[RunningWorker], bool],
    ) -> None:
        """`running`: by incarnation. `goes_on`: whether a worker's process will be that of its name's next role."""
        self._running = running
        self._kept = kept
        self._goes_on = goes_on
        self._tasks: dict[str, asyncio.Task[int]] = {}  # by incarnation

    def begin(self, group: asyncio.TaskGroup, retire: Retire, timeout_s: float) -> asyncio.Task[int]:
        """The task, in that group, that takes it out, and returns how many requests it aborted."""
        task = self._tasks.get(retire.incarnation)
        if task is None:
            task = group.create_task(self._drain_and_stop(retire, timeout_s))
            task.add_done_callback(lambda _: self._tasks.pop(retire.incarnation, None))
            self._tasks[retire.incarnation] = task
        return task

    async def _drain_and_stop(self, retire: Retire, timeout_s: float) -> int:
        """Its end is seen by the task that watches it."""
        worker = self._running.get(retire.incarnation)
        if worker is None:
            return 0
        num_aborted = 0
        if retire.was_ready:
            logger.info("%s drains for up to %g s", retire.name, timeout_s)
            try:
                async with asyncio.timeout(timeout_s + DRAIN_MARGIN_S):
                    num_aborted = await worker.drain(timeout_s)
            except (ProcessLost, TimeoutError) as error:
                logger.warning("%s did not drain: %s", retire.name, error)
        await (self._kept.release(worker) if self._goes_on(worker) else worker.stop())
        return num_aborted
