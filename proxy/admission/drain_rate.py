"""How fast waiting work is taken by workers: measured only while somebody waits, so it is what the cluster can do.

Pure. Work is in tokens, as `queue.cost` counts it.
"""

from __future__ import annotations

HALF_LIFE_S = 10.0  # of waiting: what was seen longer ago counts less
FORGET_S = 60.0  # without anybody waiting: the cluster may be another by then
LEAST_S = 0.5  # of waiting that must have been seen
LEAST_TAKEN = 4  # times that work was taken


class DrainRate:
    """Maintains how long somebody waited, and what was taken meanwhile."""

    def __init__(self) -> None:
        self._work = 0.0
        self._waited_s = 0.0
        self._num_taken = 0
        self._looked_at: float | None = None
        self._is_waiting = False

    def looked(self, work: float, now: float, *, is_waiting: bool) -> None:
        """Workers were offered the queue and took `work`; `is_waiting`: something is left because they are full."""
        if self._looked_at is not None and now - self._looked_at > FORGET_S and not self._is_waiting:
            self._work, self._waited_s, self._num_taken = 0.0, 0.0, 0
        if self._is_waiting and self._looked_at is not None:
            span_s = now - self._looked_at
            kept = 0.5 ** (span_s / HALF_LIFE_S)
            self._work = self._work * kept + work
            self._waited_s = self._waited_s * kept + span_s
            self._num_taken += work > 0
        self._looked_at, self._is_waiting = now, is_waiting

    def per_second(self, now: float) -> float | None:
        """None: nobody waits, or too little was seen."""
        if not self._is_waiting or self._looked_at is None or self._num_taken < LEAST_TAKEN:
            return None
        span_s = now - self._looked_at
        kept = 0.5 ** (span_s / HALF_LIFE_S)
        waited_s = self._waited_s * kept + span_s
        return self._work * kept / waited_s if waited_s >= LEAST_S else None
