"""The hand-off's metrics, of both sides, on a registry that the worker owns. Names and buckets: the project's METRICS list.

Every series carries the worker's own labels, so a dashboard needs no relabelling.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STAGES = ("reserve", "handshake", "wait_ready", "transfer", "validate")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RATIO = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)


class TransferMetrics:
    """Maintains the counters; the two sides tell it what happened."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        names = list(labels)
        self._labels = labels
        self._stage = Histogram(
            "pdserve_handoff_stage_seconds",
            "Time of each stage of a hand-off",
            [*names, "stage"],
            registry=registry,
            buckets=SECONDS,
        )
        self._transfer = Histogram(
            "pdserve_kv_transfer_seconds",
            "From the first read to the last byte of one prompt's KV",
            [*names, "transport", "mode"],
            registry=registry,
            buckets=SECONDS,
        )
        self._overlap = Histogram(
            "pdserve_handoff_overlap_ratio",
            "Share of the transfer hidden behind prefill",
            names,
            registry=registry,
            buckets=RATIO,
        )
        self._bytes = Counter(
            "pdserve_kv_transfer_bytes",
            "KV bytes moved",
            [*names, "transport", "mode", "direction"],
            registry=registry,
        )
        self._tokens = Counter("pdserve_kv_transfer_tokens", "Prompt tokens received as KV", names, registry=registry)
        self._failures = Counter(
            "pdserve_kv_transfer_failures", "Hand-offs that failed", [*names, "reason"], registry=registry
        )
        self._expired = Counter("pdserve_kv_lease_expired", "Leases that ran out", names, registry=registry)
        self._stale = Counter("pdserve_kv_stale_rejected", "Commits answered Stale", names, registry=registry)
        self._leases = Gauge("pdserve_kv_leases_active", "Sessions that a peer leases", names, registry=registry)
        for counter in (self._tokens, self._expired, self._stale, self._leases):
            counter.labels(**labels)  # shown as 0 before the first event
