"""A command kept running: started again, after a growing wait, each time it exits.

The child has a process group of its own and never outlives this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import Process
from time import monotonic

from cluster.backoff import Backoff
from cluster.die_with_parent import wrapped
from cluster.spec import RestartSpec

logger = logging.getLogger(__name__)


class ChildProcess:
    """Maintains at most one living child. `run` does the work; cancelling it leaves the child to `stop`."""

    def __init__(self, name: str, command: tuple[str, ...], restart: RestartSpec) -> None:
        self.name = name
        self.num_starts = 0
        self.last_error = ""
        self._command = command
        self._restart = restart
        self._process: Process | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """None between two starts."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Until `stop`: starts the command, waits for its exit, waits, starts it again."""
        backoff = Backoff(self._restart)
        while not self._stopping:
            started_at = monotonic()
            code = await self._run_once()
            if self._stopping:
                return
            self.last_error = f"{self.name} exited with {_exit_name(code)}"
            backoff = backoff.after_life(monotonic() - started_at)
            logger.warning("%s; started again in %g s", self.last_error, backoff.delay_s)
            await asyncio.sleep(backoff.delay_s)

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM to the child's group; SIGKILL after `timeout_s`. Returns when it is gone."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        _signal_group(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            logger.warning("%s did not stop within %g s: killed", self.name, timeout_s)
        _signal_group(process, signal.SIGKILL)  # what the child may have left in its group, too
        await process.wait()

    async def _run_once(self) -> int:
        self.num_starts += 1
        self._process = await asyncio.create_subprocess_exec(*wrapped(self._command), start_new_session=True)
        logger.info("%s starts in process %d", self.name, self._process.pid)
        return await self._process.wait()


def _signal_group(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _exit_name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"
