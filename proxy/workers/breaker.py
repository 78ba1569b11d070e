"""Keeps new requests from a worker that fails them one after the other, for a short time that grows, then tries it.

It advises only: where every worker had better be left alone, all of them are used, so that no breaker can lock a pool.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_FAILURES = 3  # in a row
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 15.0


class Breaker:
    """Maintains the failures since the last success. What a client did wrong is neither, and is not told here."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._num_failures = 0
        self._pause_until = 0.0
        self._trial: str | None = None  # the one request that is let through after a pause

    @property
    def advises_against(self) -> bool:
        """A request had better go elsewhere now."""
        if self._num_failures < MAX_FAILURES:
            return False
        return self._now() < self._pause_until

    def sent(self, request_id: str) -> None:
        """After a pause the first one is the trial: until its verdict, or another pause, no other should come."""
        if self._num_failures >= MAX_FAILURES and not self.advises_against:
            self._trial = request_id
            self._pause_until = self._now() + LAST_PAUSE_S

    def ended(self, request_id: str) -> None:
        """Without a verdict on the worker: its client went away, say. The next one is the trial."""
        if request_id == self._trial:
            self._trial = None
            self._pause_until = self._now()

    def succeeded(self) -> None:
        self._num_failures = 0
        self._trial = None

    def failed(self) -> None:
        self._num_failures += 1
        self._trial = None
        if self._num_failures >= MAX_FAILURES:
            num_pauses = self._num_failures - MAX_FAILURES
            self._pause_until = self._now() + min(FIRST_PAUSE_S * 2 ** min(num_pauses, 10), LAST_PAUSE_S)
