"""What one choice of a request went through, here and on workers, as far as it is over: for the log and for traces.

Of several attempts a stage's times add up. Spans of workers are theirs to make: here are their durations only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from proxy.request.job import Job
from proxy.routing.placement import Placement
from rpc import worker_pb2
from telemetry.stage import Stage, Value

QUEUE, ROUTE = "proxy.queue", "proxy.route"


class Stages:
    """Maintains the proxy's own stages, in order, and how long each stage took altogether."""

    def __init__(self, job: Job) -> None:
        self.own: list[Stage] = []
        self.durations_s: dict[str, float] = {}
        self._choice = job.choice
        self._waits_since = job.admitted_at

    def waits(self, now: float) -> None:
        """For workers, again."""
        self._waits_since = now

    def placed(self, placement: Placement, attempt: int, now: float) -> None:
        """Its workers were chosen, and are told."""
        told: dict[str, Value] = {"pdserve.choice": self._choice, "pdserve.attempt": attempt}
        self._add(Stage(QUEUE, self._waits_since, placement.choosing_since, told))
        told = dict(told)
        for role, link in (("prefill", placement.prefill), ("decode", placement.decode)):
            if link is not None:
                told[f"pdserve.{role}_worker"] = link.worker
        if placement.transport is not None:
            told["pdserve.transport"] = placement.transport
        if placement.local_reason is not None:
            told["pdserve.local_reason"] = placement.local_reason
        self._add(Stage(ROUTE, placement.choosing_since, now, told))

    def told(self, stages: Iterable[worker_pb2.StageTime]) -> None:
        """By a worker."""
        for stage in stages:
            self._count(stage.name, stage.duration_s)

    def _add(self, stage: Stage) -> None:
        self.own.append(stage)
        self._count(stage.name, stage.duration_s)

    def _count(self, name: str, duration_s: float) -> None:
        self.durations_s[name] = self.durations_s.get(name, 0.0) + duration_s


def longest(choices: Iterable[Stages]) -> Mapping[str, float]:
    """Of a request's choices each stage's longest time."""
    found: dict[str, float] = {}
    for stages in choices:
        for name, duration_s in stages.durations_s.items():
            found[name] = max(found.get(name, 0.0), duration_s)
    return found
