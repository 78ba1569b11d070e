"""What several samples say together: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from proxy.dashboard.quantile import quantile
from proxy.dashboard.sample import Kind, Pair, Sample, Totals


@dataclass(frozen=True, slots=True)
class Quantiles:
    p50: float
    p95: float
    p99: float
    num_values: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Of samples that follow each other."""

    duration_s: float
    quantiles: Mapping[Kind, Quantiles]
    counts: Mapping[str, int]
    handoffs: Mapping[Pair, int]
    grown: Totals

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Summary:
        counts: Counter[str] = Counter()
        handoffs: Counter[Pair] = Counter()
        for sample in samples:
            counts.update(sample.counts)
            handoffs.update(sample.handoffs)
        grown = sum((sample.grown for sample in samples), Totals())
        return cls(sum(sample.duration_s for sample in samples), quantiles_of(samples), counts, handoffs, grown)


def quantiles_of(samples: Sequence[Sample]) -> dict[Kind, Quantiles]:
    """Without the kinds of which there is no value."""
    found = {}
    for kind in Kind:
        ordered = sorted(chain.from_iterable(sample.values[kind] for sample in samples))  # of runs that are in order
        p50, p95, p99 = (quantile(ordered, share) for share in (0.5, 0.95, 0.99))
        if p50 is not None and p95 is not None and p99 is not None:
            found[kind] = Quantiles(p50, p95, p99, len(ordered))
    return found
