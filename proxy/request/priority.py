"""How soon a request should be served: its class, its level within the class, and how waiting makes up for both.

The one place where the proxy's order is defined; workers order by the same rule whatever they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass

INTERACTIVE = "interactive"
BATCH = "batch"
LABELS = (INTERACTIVE, BATCH)
MAX_LEVEL = 10
NUM_LEVELS = 2 * MAX_LEVEL + 1


@dataclass(frozen=True, slots=True)
class Priority:
    """Every interactive one is sooner than every batch one that arrived with it; then the lower level is sooner."""

    is_batch: bool = False
    level: int = 0  # from -MAX_LEVEL to MAX_LEVEL

    @property
    def label(self) -> str:
        return BATCH if self.is_batch else INTERACTIVE

    @property
    def rank(self) -> int:
        """What workers are told; lower is sooner."""
        return self.level + NUM_LEVELS * self.is_batch

    def order(self, arrived_at: float, ageing_s: float) -> float:
        """Lower is sooner: when the request would have arrived were its rank 0. A wait of `ageing_s` makes up for one
        rank, so nobody waits for ever and an order never changes."""
        return arrived_at + self.rank * ageing_s


NORMAL = Priority()


def is_batch(rank: int) -> bool:
    return rank > MAX_LEVEL
