"""How often a request may be tried again, and where: pure, so that a table tests it.

All attempts of a request share one budget. It remembers whose links broke under the request; whether those workers
died is for the membership to say.
"""

from __future__ import annotations

from proxy.routing.placement import Constraints
from proxy.routing.transport_choice import Path
from proxy.workers.worker_link import WorkerLink

HANDOFF_FAILED = "handoff_failed"
MAX_FAILED_INSIDE = 2  # fewer than the failed steps in a row that end an engine: no request can end one


class BudgetSpent(Exception):
    """No further attempt; the message says why."""


class RetryBudget:
    """Maintains the failures so far of one request."""

    def __init__(self, max_attempts: int, max_handoff_attempts: int) -> None:
        self.num_attempts = 0
        self._max_attempts = max_attempts
        self._max_handoff_attempts = max_handoff_attempts
        self._num_failed_handoffs = 0
        self._num_failed_inside = 0
        self._lost: dict[WorkerLink, int] = {}  # and which of its streams that was
        self._avoid: frozenset[str] = frozenset()
        self.failed_paths: frozenset[Path] = frozenset()

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

    def link_lost(self, link: WorkerLink) -> None:
        """Its worker died while the request was there, or only the link did: then the link will come back."""
        self._lost[link] = link.num_streams

    def decode_constraints(self) -> Constraints:
        """Where the attempt that runs goes on, once its prompt is in the pool."""
        return Constraints(avoid=self._avoid, lost=self._not_seen_since(), prompt_in_pool=True)

    def next_constraints(self, keep: WorkerLink | None, prefill: WorkerLink | None = None) -> Constraints:
        """Where to try next, on the decode worker `keep` and with `prefill` if it can be. Raises BudgetSpent."""
        if self._num_failed_inside >= MAX_FAILED_INSIDE:
            raise BudgetSpent(f"{self._num_failed_inside} workers failed on this request")
        if self.num_attempts >= self._max_attempts:
            raise BudgetSpent(f"{self.num_attempts} attempts failed (max_attempts)")
        local = self._num_failed_handoffs >= self._max_handoff_attempts
        lost = self._not_seen_since()
        return Constraints(keep, prefill, self.failed_paths, self._avoid, lost, HANDOFF_FAILED if local else None)

    def _not_seen_since(self) -> frozenset[str]:
        """A worker that was reached again after its link broke did not die then, whatever became of it later."""
        return frozenset(link.incarnation for link, streams in self._lost.items() if link.num_streams == streams)
