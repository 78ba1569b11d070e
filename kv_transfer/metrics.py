"""The hand-off's metrics, of both sides, on a registry that the worker owns.

Every series carries the worker's own labels, so a dashboard needs no relabelling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kv_transfer.handoff import HandoffResult
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import FailureReason
from kv_transfer.pool_reader import PoolRead
from kv_transfer.staging import StagingRing

P2P, POOLED = "p2p", "pooled"  # the modes
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
        self._tokens = Counter(
            "pdserve_kv_transfer_tokens", "Prompt tokens received as KV", [*names, "mode"], registry=registry
        )
        self._failures = Counter(
            "pdserve_kv_transfer_failures",
            "Hand-offs, or reads from the pool, that failed",
            [*names, "reason", "mode"],
            registry=registry,
        )
        for mode in (P2P, POOLED):  # shown as 0 before the first, so that the first is seen as a change
            self._tokens.labels(**labels, mode=mode)
            for reason in FailureReason:
                self._failures.labels(**labels, reason=reason.value, mode=mode)

    def stage(self, stage: str, seconds: float) -> None:
        self._stage.labels(**self._labels, stage=stage).observe(seconds)

    def received(self, result: HandoffResult) -> None:
        """D took over a prompt; nothing but time is counted when its first token already ended it."""
        for stage, seconds in result.stages.items():
            self.stage(stage, seconds)
        if result.kv_valid:
            self._count(result.transport, P2P, result.received_tokens, result.received_bytes, result.transfer_s)
        if result.overlap_ratio is not None:
            self._overlap.labels(**self._labels).observe(result.overlap_ratio)

    def read_from_pool(self, read: PoolRead) -> None:
        """P or D took over what the pool had of a prompt, perhaps nothing."""
        if read.transport is not None:
            self._count(read.transport, POOLED, read.num_received, read.num_bytes, read.transfer_s)

    def sent(self, transport: str, num_bytes: int, mode: str = P2P) -> None:
        """P's blocks were read and called Valid."""
        self._bytes.labels(**self._labels, transport=transport, mode=mode, direction="out").inc(num_bytes)

    def failed(self, reason: FailureReason) -> None:
        self._failures.labels(**self._labels, reason=reason.value, mode=P2P).inc()

    def pool_failed(self, reason: FailureReason) -> None:
        """A node of the pool did not serve; no request fails for that."""
        self._failures.labels(**self._labels, reason=reason.value, mode=POOLED).inc()

    def _count(self, transport: str, mode: str, num_tokens: int, num_bytes: int, transfer_s: float) -> None:
        path = {**self._labels, "transport": transport, "mode": mode}
        self._transfer.labels(**path).observe(transfer_s)
        self._bytes.labels(**path, direction="in").inc(num_bytes)
        self._tokens.labels(**self._labels, mode=mode).inc(num_tokens)


class TransferGauges(Collector):
    """Leases and staging slots as they are when scraped."""

    def __init__(self, leases: LeaseTable, ring: StagingRing, labels: Mapping[str, str]) -> None:
        self._leases = leases
        self._ring = ring
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        leases, slots = self._leases.counts(), self._ring.counts()
        names, values = list(self._labels), list(self._labels.values())
        active = GaugeMetricFamily("pdserve_kv_leases_active", "Sessions that a peer leases", labels=names)
        active.add_metric(values, leases.active)
        expired = CounterMetricFamily("pdserve_kv_lease_expired", "Leases that ran out", labels=names)
        expired.add_metric(values, leases.num_expired)
        stale = CounterMetricFamily("pdserve_kv_stale_rejected", "Commits answered Stale", labels=names)
        stale.add_metric(values, leases.num_stale)
        staging = GaugeMetricFamily("pdserve_staging_slots", "Staging slots by state", labels=[*names, "state"])
        for state in ("free", "busy", "quarantined"):
            staging.add_metric([*values, state], getattr(slots, state))
        yield from (active, expired, stale, staging)
