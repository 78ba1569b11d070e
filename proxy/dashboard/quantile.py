"""Quantiles of values that were measured, by nearest rank: what is told was measured, and not between two."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The least value that `share` of all do not pass, 0 < share ≤ 1; None of nothing."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def thinned(values: Sequence[float], limit: int) -> tuple[float, ...]:
    """At most `limit` of them in order, whose quantiles are those of all but for one part in `limit`."""
    ordered = sorted(values)
    if len(ordered) <= limit:
        return tuple(ordered)
    return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * limit)] for i in range(limit))
