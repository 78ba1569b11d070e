"""What the page at /dashboard is told each second, as JSON: plain numbers in base units, seconds, tokens, shares of 1.

All who look get the same; what takes long is made once for each sample.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from proxy.dashboard import cluster_map
from proxy.dashboard.history import INTERVAL_S, Point
from proxy.dashboard.sample import Kind
from proxy.dashboard.summary import Quantiles, Summary
from proxy.service import GenerationService
from proxy.workers.membership import MembershipWatch
from proxy.workers.worker_pool import WorkerPool

MINUTE = 60  # samples
DIGITS = 5  # of seconds and rates: nobody sees more


class DashboardState:
    """Maintains the newest minute's summary."""

    def __init__(self, service: GenerationService, pool: WorkerPool, watch: MembershipWatch) -> None:
        self._service = service
        self._history = service.history
        self._pool = pool
        self._watch = watch
        self._started_at = time.time()
        self._summarised = -1  # the sample that the summary ends with
        self._minute = Summary.of([])

    def after(self, number: int) -> dict[str, Any]:
        """With the points after this number only; -1: with all that are kept."""
        service, history, minute = self._service, self._history, self._newest_minute()
        return {
            "at": time.time(),
            "interval_s": INTERVAL_S,
            "newest": history.newest,
            "model": service.model.name,
            "started_at": self._started_at,  # another one: the proxy has started again, and counts points from 0
            "is_ready": service.is_ready,
            "is_controller_away": self._watch.is_away,
            "goals": {"ttft_s": history.goals.ttft_s, "tpot_s": history.goals.tpot_s},
            "queued": service.num_waiting,
            "minute": _minute(minute),
            "workers": cluster_map.workers(self._pool),
            "pool_nodes": cluster_map.pool_nodes(self._pool),
            "handoffs": cluster_map.handoffs(service.running, minute.handoffs),
            "errors": [asdict(error) for error in history.errors.newest_first()],
            "points": [_point(point) for point in history.after(number)],
        }

    def _newest_minute(self) -> Summary:
        if self._summarised != self._history.newest:
            self._minute = Summary.of(self._history.last(MINUTE))
            self._summarised = self._history.newest
        return self._minute


def _minute(summary: Summary) -> dict[str, Any]:
    return {
        "duration_s": round(summary.duration_s, DIGITS),
        "quantiles": _quantiles(summary.quantiles),
        "counts": dict(summary.counts),
        **asdict(summary.grown),
    }


def _point(point: Point) -> dict[str, Any]:
    """Counts as rates, per second; what waits and runs as it stood at the end."""
    sample, summary = point.sample, point.summary
    span_s = max(summary.duration_s, INTERVAL_S)
    return {
        "number": sample.number,
        "at": round(sample.at, 2),
        "quantiles": _quantiles(summary.quantiles),
        "rates": {what: round(count / span_s, DIGITS) for what, count in summary.counts.items()},
        "prompt_tokens": round(summary.grown.prompt_tokens / span_s, DIGITS),
        "generated_tokens": round(summary.grown.generated_tokens / span_s, DIGITS),
        "queued": sum(sample.gauges.num_queued.values()),
        "running": sample.gauges.num_running,
    }


def _quantiles(found: Mapping[Kind, Quantiles]) -> dict[str, dict[str, float]]:
    return {
        kind: {
            "p50": round(each.p50, DIGITS),
            "p95": round(each.p95, DIGITS),
            "p99": round(each.p99, DIGITS),
            "num": each.num_values,
        }
        for kind, each in found.items()
    }
