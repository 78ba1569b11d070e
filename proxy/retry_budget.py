"""How often a request may be tried again, and where: pure, so that a table tests it.

All attempts of a request share one budget. Two lost workers end it: a request that kills workers must not walk on.
"""

from __future__ import annotations

from proxy.dispatcher import Wish
from proxy.worker_link import WorkerLink

MAX_LOST_WORKERS = 2
HANDOFF_FAILED = "handoff_failed"


class BudgetSpent(Exception):
    """No further attempt; the message says why."""


class RetryBudget:
    """Maintains the failures so far of one request."""

    def __init__(self, max_attempts: int, max_handoff_attempts: int) -> None:
        self.num_attempts = 0
        self._max_attempts = max_attempts
        self._max_handoff_attempts = max_handoff_attempts
        self._num_failed_handoffs = 0
        self._num_lost_workers = 0
        self._avoid: frozenset[str] = frozenset()

    def handoff_failed(self, *, for_good: bool = False) -> None:
        """The prompt's KV did not come; `for_good`: nor would it from another prefill worker."""
        self._num_failed_handoffs = self._max_handoff_attempts if for_good else self._num_failed_handoffs + 1

    def shun(self, link: WorkerLink | None) -> None:
        """From now on any other worker is better than this one."""
        if link is not None:
            self._avoid |= {link.incarnation}

    def worker_lost(self) -> None:
        self._num_lost_workers += 1

    def next_wish(self, keep: WorkerLink | None) -> Wish:
        """Where to try next, on the decode worker `keep` if it can be. Raises BudgetSpent."""
        if self._num_lost_workers >= MAX_LOST_WORKERS:
            raise BudgetSpent(f"the request was at {MAX_LOST_WORKERS} workers when they were lost")
        if self.num_attempts >= self._max_attempts:
            raise BudgetSpent(f"{self.num_attempts} attempts failed (max_attempts)")
        local = self._num_failed_handoffs >= self._max_handoff_attempts
        return Wish(keep, self._avoid, HANDOFF_FAILED if local else None)

    @property
    def is_poison(self) -> bool:
        return self._num_lost_workers >= MAX_LOST_WORKERS
