"""Whether a worker's engine still turns, seen from the event loop: a thread that hangs cannot say so.

Only time in which this loop runs counts, so that a process that was stopped as a whole is not taken for a stuck engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.stuck_spec import StuckSpec
from engine.engine_thread import EngineThread

CHECKS = 10  # before the limit is reached


class EngineWatch:
    """Maintains `is_stuck`. `on_change` is called after each change of it, `on_lost` once, with the reason."""

    def __init__(
        self, engine: EngineThread, limits: StuckSpec, on_change: Callable[[], None], on_lost: Callable[[str], None]
    ) -> None:
        self.is_stuck = False
        self._engine = engine
        self._limits = limits
        self._on_change = on_change
        self._on_lost = on_lost
        self._num_turns = -1
        self._still_s = 0.0

    async def run(self) -> None:
        """Until cancelled, or until the engine is lost."""
        every_s = self._limits.after_s / CHECKS
        while self._still_s < self._limits.replaced_after_s:
            await asyncio.sleep(every_s)
            self._check(every_s)
        self._on_lost(f"the engine has not turned for {self._still_s:g} s")

    def _check(self, passed_s: float) -> None:
        num_turns = self._engine.num_turns
        self._still_s = self._still_s + passed_s if num_turns == self._num_turns else 0.0
        self._num_turns = num_turns
        is_stuck = self._still_s >= self._limits.after_s
        if is_stuck != self.is_stuck:
            self.is_stuck = is_stuck
            self._on_change()
