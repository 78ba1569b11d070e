"""What a process counts, as one scrape sees it, checked to be what Prometheus takes for counters and histograms."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from tests import plain_http

Series = tuple[str, frozenset[tuple[str, str]]]  # name and labels


def scrape_counts(url: str) -> dict[Series, float]:
    """Every counter's and histogram's series. No value is negative or no number, and buckets add up."""
    counts: dict[Series, float] = {}
    for family in text_string_to_metric_families(plain_http.get(url, timeout=10).text):
        assert all(sample.value >= 0 for sample in family.samples), family
        if family.type in ("counter", "histogram"):
            counts |= {(s.name, frozenset(s.labels.items())): s.value for s in family.samples}
    for (name, labels), value in counts.items():
        if name.endswith("_count"):
            _check_buckets(counts, name.removesuffix("_count"), labels, value)
    return counts


def check_none_fell(before: dict[Series, float], after: dict[Series, float]) -> None:
    """Nor has one gone."""
    fell = {series: (value, after.get(series)) for series, value in before.items() if after.get(series, -1) < value}
    assert not fell


def _check_buckets(counts: dict[Series, float], name: str, labels: frozenset[tuple[str, str]], count: float) -> None:
    bounds = [dict(other)["le"] for bucket, other in counts if bucket == f"{name}_bucket" and labels <= other]
    values = [counts[f"{name}_bucket", labels | {("le", bound)}] for bound in sorted(bounds, key=float)]
    assert values == sorted(values), name
    assert math.isinf(max(map(float, bounds))), name
    assert values[-1] == count, name
