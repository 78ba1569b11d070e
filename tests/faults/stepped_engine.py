"""An `EngineThread` that runs on the event loop, in its time, so that a run of several engines can be repeated exactly.

As in the thread, commands go on while a batch is computed, and none comes between a step's end and its subscribers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from engine.engine import Engine
from engine.engine_thread import TICK_S, EngineThread

T = TypeVar("T")


class SteppedEngine(EngineThread):
    """A step takes `step_s`, and `token_s` for each token; its KV is written in the middle."""

    def __init__(self, engine: Engine, step_s: float, token_s: float = 0.0005) -> None:
        super().__init__(engine)
        self._step_s = step_s
        self._token_s = token_s
        self._woken = asyncio.Event()
        self._steps: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._steps = asyncio.get_running_loop().create_task(self._go_on())

    def stop(self, timeout_s: float = 10.0) -> None:
        if self._steps is not None:
            self._steps.cancel()
        super().stop(timeout_s)

    def call(self, command: Callable[[Engine], T]) -> Future[T]:
        future = super().call(command)
        asyncio.get_running_loop().call_soon(self._take_commands)
        return future

    def _take_commands(self) -> None:
        self._run_commands(wait=False)
        self._woken.set()

    async def _go_on(self) -> None:
        while True:
            self._woken.clear()
            schedule = self.engine.schedule()
            half_s = (self._step_s + self._token_s * schedule.batch.num_tokens) / 2 if schedule.batch.works else 0.0
            await asyncio.sleep(half_s)
            self._computing = schedule.batch
            outcome = self.engine.compute(self._watched(schedule.batch))
            await asyncio.sleep(half_s)
            self._computing = None
            result = self.engine.finish(schedule, outcome)
            self.load = self.engine.load()
            self._publish(result)
            if result.num_tokens == 0 and not result.failed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._woken.wait()
