"""One load on one cluster that scales itself, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cluster import running
from bench.scaling.arrivals import Phase, arrivals
from bench.scaling.crowd import Crowd, Seen
from bench.scaling.sizes import SizeChange, Sizes, SizeWatch, changes
from proxy.workers.channel import open_channel


@dataclass(frozen=True, slots=True)
class Goal:
    """What requests are measured by, in seconds."""

    ttft_s: float
    tpot_s: float

    def is_met(self, seen: Seen) -> bool:
        if seen.error or seen.first_s > self.ttft_s:
            return False
        return seen.per_token_s is None or seen.per_token_s <= self.tpot_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run; times are seconds since the load's start."""

    name: str
    phases: Sequence[Phase]
    goal: Goal
    seen: Sequence[Seen]
    sizes: Sequence[Sizes]
    log: Sequence[str]  # the autoscaler's lines

    @property
    def changes(self) -> list[SizeChange]:
        return list(changes(self.sizes))

    @property
    def failed(self) -> list[Seen]:
        return [each for each in self.seen if each.error]

    def begin_of(self, phase: Phase) -> float:
        return sum(each.seconds for each in self.phases[: self.phases.index(phase)])

    def of_phase(self, phase: Phase, after_s: float = 0.0, until_s: float = float("inf")) -> list[Seen]:
        """Requests that came so many seconds after its begin."""
        begin_s = self.begin_of(phase)
        return [s for s in self.seen if s.phase == phase.name and after_s <= s.at_s - begin_s < until_s]

    def attained(self, seen: Sequence[Seen]) -> float:
        return sum(map(self.goal.is_met, seen)) / len(seen) if seen else 1.0


def run(
    name: str,
    cluster: str,
    config: Path,
    settings: Mapping[str, object],
    phases: Sequence[Phase],
    goal: Goal,
    seed: int,
) -> Outcome:
    """Starts the cluster of this name, sends the load, ends it. Raises RuntimeError when it does not start."""
    with running(config, settings, cluster) as status:
        crowd, watch = asyncio.run(_load(status, phases, seed))
        log = Path(status["cluster"]["log_dir"]) / "controller.log"
        lines = [line for line in log.read_text().splitlines() if "autoscale:" in line]
    seen = sorted(crowd.seen, key=lambda each: each.at_s)
    return Outcome(name, phases, goal, seen, watch.seen, lines)


async def _load(status: dict[str, Any], phases: Sequence[Phase], seed: int) -> tuple[Crowd, SizeWatch]:
    async with (
        open_channel(status["proxy"]["grpc"]) as proxy,
        open_channel(status["controller"]["address"]) as controller,
    ):
        crowd, watch = Crowd(proxy), SizeWatch(controller)
        watching = asyncio.create_task(watch.run())
        await crowd.run(arrivals(phases, seed))
        watching.cancel()
    return crowd, watch
