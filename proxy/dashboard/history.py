"""The last minutes of the proxy, a sample for each second, whether somebody looks or not.

Belongs to the event loop. It keeps numbers, and of requests that failed an id and a message; never a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from prometheus_client import Counter

from proxy.admission.slo import Slo
from proxy.config import ProxyConfig
from proxy.dashboard.recent_errors import RecentErrors
from proxy.dashboard.sample import Gauges, Sample, SampleMaker, Totals
from proxy.dashboard.summary import Summary
from proxy.errors import ApiError, ErrorCode
from proxy.metrics import ProxyMetrics
from proxy.request.generation import Generation
from proxy.request.generation_request import GenerationRequest
from proxy.request.lifecycle import Lifecycle

INTERVAL_S = 1.0
NUM_POINTS = 300
SMOOTHED_OVER = 10  # samples: figures of one second alone jump about
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Point:
    """One second, as it is drawn."""

    sample: Sample
    summary: Summary  # of the `SMOOTHED_OVER` samples up to this one


class History:
    """Maintains the newest `NUM_POINTS` points, numbered from 0, and the newest errors."""

    def __init__(self, metrics: ProxyMetrics, config: ProxyConfig, now: Callable[[], float]) -> None:
        """`now`: the loop's clock."""
        self.errors = RecentErrors()
        self.goals = Slo(config.slo_ttft_s, config.slo_tpot_s)  # of requests that name none
        self._metrics = metrics
        self._now = now
        self._points: deque[Point] = deque(maxlen=NUM_POINTS)
        self._next_number = 0
        self._sampled_at = now()
        self._totals = self._read_totals()
        self._maker = SampleMaker(self._sampled_at)

    @property
    def newest(self) -> int:
        """The number of the newest sample; -1: there is none yet."""
        return self._next_number - 1

    def after(self, number: int) -> list[Point]:
        """The kept ones with higher numbers, in order."""
        return list(islice(self._points, max(0, len(self._points) - max(0, self.newest - number)), None))

    def last(self, num_samples: int) -> list[Sample]:
        return [point.sample for point in self.after(self.newest - num_samples)]

    def refused(self, request_id: str, error: ApiError) -> None:
        """A request that was not admitted."""
        self._maker.count("refused")
        self.errors.add(time.time(), request_id, error)

    def ended(self, request: GenerationRequest, generation: Generation) -> None:
        slo = Slo(request.slo.ttft_s or self.goals.ttft_s, request.slo.tpot_s or self.goals.tpot_s)
        for choice in generation.choices:
            self._maker.look_at(choice)
            self._maker.count_slo(choice, slo)
        error = generation.error
        if error is None:
            self._maker.count("ok")
        elif error.code is ErrorCode.CANCELLED:
            self._maker.count("cancelled")
        else:
            self._maker.count("failed")
            self.errors.add(time.time(), request.request_id, error, generation.choices[0].route)

    def take_sample(self, running: list[Lifecycle], num_queued: dict[str, int]) -> None:
        """`running`: the choices of all requests that were admitted and have not ended."""
        now, totals, maker = self._now(), self._read_totals(), self._maker
        for choice in running:
            maker.look_at(choice)
        gauges = Gauges(num_queued, max(0, len(running) - sum(num_queued.values())))
        sample = maker.make(self._next_number, time.time(), now - self._sampled_at, totals - self._totals, gauges)
        self._points.append(Point(sample, Summary.of([*self.last(SMOOTHED_OVER - 1), sample])))
        self._next_number += 1
        self._sampled_at, self._totals, self._maker = now, totals, SampleMaker(now)

    async def run(self, look: Callable[[], tuple[list[Lifecycle], dict[str, int]]]) -> None:
        """Takes a sample each second until cancelled; one that cannot be taken is logged, and the proxy goes on."""
        next_at = self._now()
        while True:
            next_at = max(next_at + INTERVAL_S, self._now())
            await asyncio.sleep(next_at - self._now())
            try:
                self.take_sample(*look())
            except Exception:  # this loop's main: a fault here must not cost the proxy
                logger.exception("no sample for the dashboard")

    def _read_totals(self) -> Totals:
        metrics = self._metrics
        return Totals(_total(metrics.prompt_tokens), _total(metrics.generation_tokens), _total(metrics.retries))


def _total(counter: Counter) -> int:
    return int(sum(_values(counter)))


def _values(counter: Counter) -> Iterator[float]:
    return (s.value for metric in counter.collect() for s in metric.samples if s.name.endswith("_total"))
