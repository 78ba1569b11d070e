"""A pool node's metrics, read when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.metrics import POOLED
from kv_transfer.staging import StagingRing


class PoolMetrics(Collector):
    """Maintains nothing. `tier`: memory or disk; `direction`: in from workers that offer, out to those that read."""

    def __init__(self, node: LocalPoolNode, ring: StagingRing, labels: Mapping[str, str]) -> None:
        self._node = node
        self._ring = ring
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        node, counts, slots = self._node, self._node.store.counts(), self._ring.counts()
        names, values = list(self._labels), list(self._labels.values())
        size = GaugeMetricFamily("pdserve_pool_bytes", "KV that the node keeps", labels=[*names, "tier"])
        size.add_metric([*values, "memory"], counts.num_objects * node.arena.block_bytes)
        size.add_metric([*values, "disk"], node.disk.num_bytes if node.disk is not None else 0)
        staging = GaugeMetricFamily("pdserve_staging_slots", "Staging slots by state", labels=[*names, "state"])
        for state in ("free", "busy", "quarantined"):
            staging.add_metric([*values, state], getattr(slots, state))
        moved = CounterMetricFamily(
            "pdserve_kv_transfer_bytes", "KV bytes moved", labels=[*names, "transport", "mode", "direction"]
        )
        for direction, num_blocks in (("in", node.num_pulled), ("out", node.num_read)):
            num_bytes = num_blocks * node.arena.block_bytes
            moved.add_metric([*values, node.transport_name, POOLED, direction], num_bytes)
        yield from (size, staging, moved)
        for name, text, value in (
            ("pdserve_pool_objects", "Blocks that readers find in memory", counts.num_objects),
            ("pdserve_pool_leased_objects", "Blocks that readers lease", counts.num_leased),
            ("pdserve_pool_incomplete_objects", "Blocks on their way from a worker", counts.num_incomplete),
        ):
            gauge = GaugeMetricFamily(name, text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, text, value in (
            ("pdserve_pool_hits", "Keys looked up and found", counts.num_hits),
            ("pdserve_pool_misses", "Keys looked up and not found", counts.num_misses),
            ("pdserve_pool_evictions", "Blocks that left memory for others", counts.num_evictions),
            (
                "pdserve_pool_failed_offers",
                "Offers that ended with an error or ran out of time",
                node.num_failed_offers,
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=names)
            counter.add_metric(values, value)
            yield counter
