"""What came to the cluster lately, as the proxies reported it: rates, lengths and times of each class.

Pure; time is an argument.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rpc import control_pb2


@dataclass(frozen=True, slots=True)
class ClassTimes:
    """What requests of one class waited, in seconds; sorted."""

    queue_s: Sequence[float] = ()
    first_token_s: Sequence[float] = ()  # those that still wait count with their wait so far
    per_token_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one window. Rates are of choices and tokens per second, refused ones counted as if they had been admitted."""

    arrivals_per_s: float
    prompt_tokens_per_s: float
    prefill_share: float | None  # of prompt tokens, those that prefill workers must compute; None: nothing ended
    generated_tokens: float | None  # of one choice, the mean
    classes: dict[str, ClassTimes]

    @property
    def prefill_tokens_per_s(self) -> float | None:
        return None if self.prefill_share is None else self.prompt_tokens_per_s * self.prefill_share

    @property
    def generated_tokens_per_s(self) -> float | None:
        return None if self.generated_tokens is None else self.arrivals_per_s * self.generated_tokens


class TrafficWindow:
    """Maintains the reports of all proxies in the newest `window_s`."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._reports: deque[tuple[float, control_pb2.TrafficReport]] = deque()

    def add(self, report: control_pb2.TrafficReport, now: float) -> None:
        self._reports.append((now, report))
        self._forget(now)

    def look(self, now: float) -> Traffic | None:
        """None without a report, or when all that is known covers less than half a window."""
        self._forget(now)
        spans: dict[str, float] = {}
        for _, report in self._reports:
            spans[report.proxy_incarnation] = spans.get(report.proxy_incarnation, 0.0) + report.span_s
        span_s = max(spans.values(), default=0.0)
        if span_s < self._window_s / 2:
            return None
        return _traffic([report for _, report in self._reports], span_s)

    def _forget(self, now: float) -> None:
        while self._reports and self._reports[0][0] <= now - self._window_s:
            self._reports.popleft()


def quantile(values: Sequence[float], share: float) -> float | None:
    """Of sorted values; None of none."""
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else None


def _traffic(reports: Sequence[control_pb2.TrafficReport], span_s: float) -> Traffic:
    classes = [told for report in reports for told in report.classes]
    num_arrived = sum(told.num_arrived for told in classes)
    num_refused = sum(told.num_refused for told in classes)
    asked = 1 + num_refused / num_arrived if num_arrived else 1.0
    num_ended = sum(told.num_ended for told in classes)
    num_ended_tokens = sum(told.num_ended_prompt_tokens for told in classes)
    num_prefill_tokens = sum(told.num_ended_prefill_tokens for told in classes)
    num_generated = sum(told.num_generated_tokens for told in classes)
    newest = {report.proxy_incarnation: report for report in reports}.values()
    return Traffic(
        arrivals_per_s=num_arrived * asked / span_s,
        prompt_tokens_per_s=sum(told.num_prompt_tokens for told in classes) * asked / span_s,
        prefill_share=num_prefill_tokens / num_ended_tokens if num_ended_tokens else None,
        generated_tokens=num_generated / num_ended if num_ended else None,
        classes={
            name: _times([told for told in classes if told.priority == name], _waiting(newest, name))
            for name in {told.priority for told in classes}
        },
    )


def _times(told: Sequence[control_pb2.ClassTraffic], waiting_s: Iterable[float]) -> ClassTimes:
    return ClassTimes(
        queue_s=sorted(value for each in told for value in each.queue_s),
        first_token_s=sorted([*(value for each in told for value in each.first_token_s), *waiting_s]),
        per_token_s=sorted(value for each in told for value in each.per_token_s),
    )


def _waiting(newest: Iterable[control_pb2.TrafficReport], name: str) -> Iterable[float]:
    """Those that wait now: only each proxy's newest report knows."""
    return [value for report in newest for told in report.classes if told.priority == name for value in told.waiting_s]
