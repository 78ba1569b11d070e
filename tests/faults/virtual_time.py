"""An event loop whose clock jumps to the next timer as soon as nothing else can run: a minute of waiting costs nothing.

One thread, no clock of the machine's and nothing from outside: what happens depends on the program alone.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
TURN_S = (
    1e-6  # what a turn of the loop takes at least: who waits for less than the clock can show must not wait for ever
)


class NothingLeft(RuntimeError):
    """Somebody waits, and no timer is set that could ever end it: a hang, seen at once."""


class SkippingSelector(selectors.DefaultSelector):
    """Maintains `now`: each wait for input is over at once, and has taken its whole time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise NothingLeft("everybody waits, and no timer is set")
        self.now += TURN_S if ready else max(TURN_S, timeout or 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
