"""Whose turn it is to read from one peer: a link that breaks under many hand-offs costs a few staging slots, not all.

A read that is in doubt keeps its turn until it ends, or for `in_doubt_s`: one that never ends must not stop the others.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass

from kv_transfer.completion import when_ended
from kv_transfer.config import TransferConfig
from kv_transfer.messages import FailureReason, HandoffError


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    order: float
    turn: asyncio.Future[None]


class ReadTurns:
    """Maintains: no more reads have a turn than slots may be in doubt. Belongs to one event loop."""

    def __init__(self, config: TransferConfig) -> None:
        self._num_free = max(1, config.max_quarantined_slots)
        self._waiting: list[Waiter] = []
        self._config = config

    async def take(self, order: float = 0.0) -> None:
        """Of those who wait the one with the lowest `order` is next, then the first come. Raises HandoffError."""
        if self._num_free:
            self._num_free -= 1
            return
        waiter = Waiter(order, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        timeout_s = self._config.reserve_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.turn
        except TimeoutError:
            self._leave(waiter)
            detail = f"other reads from this peer did not end in {timeout_s:g} s"
            raise HandoffError(FailureReason.TRANSFER_TIMEOUT, detail) from None
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def give_back(self) -> None:
        waiting = [waiter for waiter in self._waiting if not waiter.turn.done()]
        if not waiting:
            self._num_free += 1
            return
        first = min(waiting, key=lambda waiter: waiter.order)
        self._waiting.remove(first)
        first.turn.set_result(None)

    def give_back_after(self, read: Future[None]) -> None:
        """Once it has ended, however it did."""
        is_mine = True

        def give_back() -> None:
            nonlocal is_mine
            if is_mine:
                is_mine = False
                timer.cancel()
                self.give_back()

        timer = asyncio.get_running_loop().call_later(self._config.in_doubt_s, give_back)
        when_ended(read, give_back)

    def _leave(self, waiter: Waiter) -> None:
        """A turn that it was given in its last moment goes to the next."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif not waiter.turn.cancelled():
            self.give_back()
