"""How often a request may be tried again, and where: pure, so that a table tests it.

All attempts of a request share one budget. A move is no failure of the request: its worker left, or its link broke.
Moves are bounded by the deadline, and rest when they come often. Whether a worker whose link broke has died is for the
membership to say.
"""

from __future__ import annotations

from proxy.routing.placement import Constraints
from proxy.routing.transport_choice import Path
from proxy.workers.worker_link import WorkerLink

HANDOFF_FAILED = "handoff_failed"
MAX_FAILED_INSIDE = 2  # fewer than the failed steps in a row that end an engine: no request can end one
NUM_QUICK_MOVES = 4  # that follow at once; each further one rests longer, so that none of them can spin
FIRST_REST_S, LONGEST_REST_S = 0.1, 2.0


class BudgetSpent(Exception):
    """No further attempt; the message says why."""


class RetryBudget:
    """Maintains the failures and moves so far of one request."""

    def __init__(self, max_attempts: int, max_handoff_attempts: int) -> None:
        self.num_attempts = 0
        self._max_attempts = max_attempts
        self._max_handoff_attempts = max_handoff_attempts
        self._num_moves = 0
        self._num_failed_handoffs = 0
        self._num_failed_inside = 0
        self._lost: dict[WorkerLink, int] = {}  # and which of its streams that was
        self._avoid: frozenset[str] = frozenset()
        self.failed_paths: frozenset[Path] = frozenset()

    @property
    def rest_s(self) -> float:
        """Before the next attempt."""
        num_slow = self._num_moves - NUM_QUICK_MOVES
        return min(FIRST_REST_S * 2 ** min(num_slow - 1, 10), LONGEST_REST_S) if num_slow > 0 else 0.0

    def begin_attempt(self) -> None:
        self.num_attempts += 1

    def handoff_failed(self, *, for_good: bool = False) -> None:
        """The prompt's KV did not come; `for_good`: nor would it from another prefill worker."""
        self._num_failed_handoffs = self._max_handoff_attempts if for_good else self._num_failed_handoffs + 1

    def path_failed(self, path: Path | None) -> None:
        """From now on another transport, or another pair."""
        if path is not None:
            self.failed_paths |= {path}

    def failed_inside(self) -> None:
        """A worker could not compute the request, though nothing is wrong with it that the worker could name."""
        self._num_failed_inside += 1

    def avoid(self, link: WorkerLink | None) -> None:
        """From now on any other worker is better than this one."""
        if link is not None:
            self._avoid |= {link.incarnation}

    def handed_back(self, link: WorkerLink) -> None:
        """The worker leaves, or changes: a move."""
        self._num_moves += 1
        self.avoid(link)

    def link_lost(self, link: WorkerLink) -> None:
        """A move. Its worker died while the request was there, or only the link did: then the link will come back."""
        self._num_moves += 1
        self._lost[link] = link.num_streams

    def decode_constraints(self) -> Constraints:
        """Where the attempt that runs goes on, once its prompt is in the pool."""
        return Constraints(avoid=self._avoid, lost=self._not_seen_since(), prompt_in_pool=True)

    def next_constraints(self, keep: WorkerLink | None, prefill: WorkerLink | None = None) -> Constraints:
        """Where to try next, on the decode worker `keep` and with `prefill` if it can be. Raises BudgetSpent."""
        if self._num_failed_inside >= MAX_FAILED_INSIDE:
            raise BudgetSpent(f"{self._num_failed_inside} workers failed on this request")
        num_failures = self.num_attempts - self._num_moves
        if num_failures >= self._max_attempts:
            raise BudgetSpent(f"{num_failures} attempts failed (max_attempts)")
        local = self._num_failed_handoffs >= self._max_handoff_attempts
        lost = self._not_seen_since()
        return Constraints(keep, prefill, self.failed_paths, self._avoid, lost, HANDOFF_FAILED if local else None)

    def _not_seen_since(self) -> frozenset[str]:
        """A worker that was reached again after its link broke did not die then, whatever became of it later."""
        return frozenset(link.incarnation for link, streams in self._lost.items() if link.num_streams == streams)
