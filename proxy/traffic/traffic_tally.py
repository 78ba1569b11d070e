"""What came to this proxy since its last report, by class: counts, lengths, and what requests waited.

Belongs to the event loop; times are the loop's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from proxy.errors import ApiError, ErrorCode
from proxy.request.generation import Generation
from proxy.request.lifecycle import Lifecycle
from proxy.request.priority import LABELS
from rpc import control_pb2

MOST_TIMES = 256  # of each list, in one report


def _newest() -> deque[float]:
    return deque(maxlen=MOST_TIMES)


@dataclass(slots=True)
class ClassTally:
    """Changed by `TrafficTally` alone."""

    told: control_pb2.ClassTraffic
    queue_s: deque[float] = field(default_factory=_newest)
    first_token_s: deque[float] = field(default_factory=_newest)
    per_token_s: deque[float] = field(default_factory=_newest)
    waiting_s: deque[float] = field(default_factory=_newest)

    def message(self) -> control_pb2.ClassTraffic:
        for name in ("queue_s", "first_token_s", "per_token_s", "waiting_s"):
            getattr(self.told, name).extend(getattr(self, name))
        return self.told


class TrafficTally:
    """Maintains the counts; each report starts them anew."""

    def __init__(self, proxy_incarnation: str, now: float) -> None:
        self._proxy_incarnation = proxy_incarnation
        self._start(now)

    def arrived(self, generation: Generation) -> None:
        for choice in generation.choices:
            told = self._of(choice).told
            told.num_arrived += 1
            told.num_prompt_tokens += choice.job.num_queued_tokens

    def refused(self, error: ApiError, priority: str) -> None:
        """Counts as demand what a larger cluster would have taken."""
        if error.code is ErrorCode.RESOURCE_EXHAUSTED and error.reason != "rate_limited":
            self._classes[priority].told.num_refused += 1

    def ended(self, generation: Generation) -> None:
        for choice in generation.choices:
            self._count_first_token(choice)
            if choice.progress.first_token_at is not None:
                self._count_end(choice)

    def report(self, running: Iterable[Lifecycle], now: float) -> control_pb2.TrafficReport:
        """Of the time since the last one; `running`: the choices that have not ended."""
        for choice in running:
            self._count_first_token(choice)
            if choice.progress.first_token_at is None:
                self._of(choice).waiting_s.append(now - choice.job.admitted_at)
        report = control_pb2.TrafficReport(
            proxy_incarnation=self._proxy_incarnation,
            span_s=now - self._started_at,
            classes=[tally.message() for tally in self._classes.values()],
        )
        self._start(now)
        return report

    def _start(self, now: float) -> None:
        self._started_at = now
        self._classes = {label: ClassTally(control_pb2.ClassTraffic(priority=label)) for label in LABELS}

    def _of(self, choice: Lifecycle) -> ClassTally:
        return self._classes[choice.job.priority.label]

    def _count_first_token(self, choice: Lifecycle) -> None:
        """Once: in the report of the time in which it came."""
        came_at = choice.progress.first_token_at
        if came_at is not None and came_at >= self._started_at:
            tally = self._of(choice)
            tally.queue_s.append(choice.progress.queue_s)
            tally.first_token_s.append(came_at - choice.job.admitted_at)

    def _count_end(self, choice: Lifecycle) -> None:
        tally, usage, token_s = self._of(choice), choice.progress.usage, choice.progress.time_per_output_token_s
        told = tally.told
        told.num_ended += 1
        told.num_generated_tokens += usage.completion_tokens
        if choice.job.is_first_of_prompt:
            told.num_ended_prompt_tokens += usage.prompt_tokens
            told.num_ended_prefill_tokens += usage.prompt_tokens - usage.cached_tokens if choice.is_for_prefill else 0
        if token_s is not None:
            tally.per_token_s.append(token_s)
