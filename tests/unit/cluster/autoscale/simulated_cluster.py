"""A cluster in virtual time, by the second: what workers report of a load, and the autoscaler's own parts deciding.

Prompts and tokens flow like water: a pool computes what it can, and the rest waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from cluster.autoscale.judge import Judge, PoolState, Resize, RoleChange, Verdict
from cluster.autoscale.need import DecodeLoad, Need, decode_need, missed_target, prefill_need
from cluster.autoscale.spec import AutoscaleSpec, ScaledRole
from cluster.autoscale.speed import PoolSpeed
from cluster.autoscale.traffic import TrafficWindow
from rpc import control_pb2, worker_pb2

PROMPT_TOKEN_S = 0.001
STEP_S, STREAM_S = 0.03, 0.002  # of a decode step, and of each stream in it
MAX_STREAMS = 32
START_S = 10  # until a worker that was started is ready


@dataclass(frozen=True, slots=True)
class Load:
    """Of one moment; requests per second, and tokens of each."""

    arrivals_per_s: float
    prompt_tokens: int
    generated_tokens: int


@dataclass(slots=True)
class SimulatedCluster:
    """Maintains sizes, backlogs and what each worker has done."""

    spec: AutoscaleSpec
    sizes: dict[ScaledRole, int]
    seed: int = 0
    verdicts: list[tuple[int, Verdict]] = field(default_factory=list)
    first_token_s: list[tuple[int, float]] = field(default_factory=list)  # when, and how long it took

    def run(self, load_at: Callable[[int], Load], seconds: int) -> None:
        rng = Random(self.seed)
        judge, window = Judge(self.spec, 0.0), TrafficWindow(self.spec.window_s)
        speeds: dict[ScaledRole, PoolSpeed] = {"prefill": PoolSpeed(), "decode": PoolSpeed()}
        totals = {role: worker_pb2.Load(num_blocks=100, num_free_blocks=90) for role in speeds}
        backlog, streams, ready_at = 0.0, 0.0, dict.fromkeys(speeds, 0)
        report = control_pb2.TrafficReport(proxy_incarnation="proxy")
        for second in range(seconds):
            load = load_at(second)
            told = report.classes.add(priority="interactive")
            num = _poisson(rng, load.arrivals_per_s)
            told.num_arrived, told.num_prompt_tokens = num, num * load.prompt_tokens
            can = self._working("prefill", ready_at, second) / PROMPT_TOKEN_S
            computed = min(backlog + num * load.prompt_tokens, can)
            backlog += num * load.prompt_tokens - computed
            wait_s = backlog / can + load.prompt_tokens * PROMPT_TOKEN_S
            told.first_token_s.extend([wait_s] * num)
            self.first_token_s += [(second, wait_s)] * num
            totals["prefill"].num_steps += num
            totals["prefill"].num_prefill_tokens += int(computed)
            totals["prefill"].step_s += computed * PROMPT_TOKEN_S
            workers = self._working("decode", ready_at, second)
            step_s = STEP_S + STREAM_S * min(MAX_STREAMS, streams / workers)
            ended = streams / (load.generated_tokens * step_s)
            streams += computed / load.prompt_tokens - min(streams, ended)
            told.num_ended = round(ended)
            told.num_ended_prompt_tokens = told.num_ended_prefill_tokens = told.num_ended * load.prompt_tokens
            told.num_generated_tokens = told.num_ended * load.generated_tokens
            told.per_token_s.extend([step_s] * told.num_ended)
            num_steps = round(1 / step_s)
            totals["decode"].num_steps += num_steps
            totals["decode"].step_s += num_steps * step_s
            totals["decode"].num_decode_tokens += round(num_steps * streams / workers)
            if (second + 1) % round(self.spec.every_s) == 0:
                report.span_s = self.spec.every_s
                window.add(report, float(second))
                report = control_pb2.TrafficReport(proxy_incarnation="proxy")
                for role, speed in speeds.items():
                    copy = worker_pb2.Load()
                    copy.CopyFrom(totals[role])
                    speed.looked({role: copy})
                self._look(judge, window, speeds, ready_at, second)

    def _look(
        self,
        judge: Judge,
        window: TrafficWindow,
        speeds: dict[ScaledRole, PoolSpeed],
        ready_at: dict[ScaledRole, int],
        second: int,
    ) -> None:
        traffic = window.look(float(second))
        if traffic is None:
            return
        needs: dict[ScaledRole, Need | None] = {
            "prefill": prefill_need(traffic, speeds["prefill"], self.spec),
            "decode": decode_need(traffic, speeds["decode"], DecodeLoad(1, 0.1, MAX_STREAMS), self.spec),
        }
        pools: dict[ScaledRole, PoolState] = {}
        for role, need in needs.items():
            if need is None or need.workers <= self.sizes[role]:
                need = missed_target(role, traffic, needs, self.sizes, self.spec) or need
            pools[role] = PoolState(self.sizes[role], second >= ready_at[role], need)
        verdict = judge.decide(pools, float(second))
        if verdict is None:
            return
        if not self.verdicts or self.verdicts[-1][1] != verdict:
            self.verdicts.append((second, verdict))
        match verdict:
            case Resize():
                self.sizes[verdict.role] = verdict.after
                ready_at[verdict.role] = second + START_S
                judge.changed(verdict.role, float(second))
            case RoleChange():
                self.sizes[verdict.role] += verdict.count
                self.sizes[verdict.giver] -= verdict.count
                for role in self.sizes:
                    ready_at[role] = second + START_S
                    judge.changed(role, float(second))

    def _working(self, role: ScaledRole, ready_at: dict[ScaledRole, int], second: int) -> int:
        """A pool that grows has its new workers only when they are ready; one is enough to be exact here."""
        return self.sizes[role] if second >= ready_at[role] else max(1, self.sizes[role] - 1)


def _poisson(rng: Random, mean: float) -> int:
    number, at = 0, rng.expovariate(1.0)
    while at < mean:
        number += 1
        at += rng.expovariate(1.0)
    return number
