"""The short form of `pdserve drill chaos`: the same drill over the tests' processes and the fake model, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.chaos.drill import Drill, Place, Plan
from bench.chaos.fleet import Target
from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel
from tests.integration.processes import Processes

pytestmark = pytest.mark.drill

PLAN = Plan(
    seed=5,
    num_requests=48,
    clients_vanish=True,
    concurrency=16,
    num_questions=7,
    num_tokens=8,
    request_s=60.0,
    time_scale=0.3,
    most_mishaps=6,
)


class OwnFleet:
    """The tests' processes, which are replaced here as a controller would."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._one_at_a_time = asyncio.Lock()

    async def ready(self) -> Sequence[Target]:
        return [
            Target(w.name, w.role, w.addresses["incarnation"], w.process.pid, w.addresses["metrics"])
            for w in self._processes.workers
            if w.process.poll() is None
        ]

    async def died(self, target: Target) -> None:
        async with self._one_at_a_time:
            worker = self._processes.worker(target.name)
            await asyncio.to_thread(worker.kill)
            await asyncio.to_thread(self._processes.replace, worker)


async def test_requests_are_answered_right_while_workers_die_stop_and_are_cut_off(tmp_path: Path) -> None:
    folder = write_fake_model(tmp_path / "model", FakeModel(seconds_per_step=0.04))
    with Processes(folder, tmp_path, engine={"num_blocks": 256}) as processes:
        await asyncio.to_thread(processes.start_workers, 2, 2)
        place = Place(processes.controller.address, folder, "test", tmp_path / "drill-proxy.log")
        verdict = await Drill(PLAN, OwnFleet(processes), place, print).run()
    assert verdict.is_good, verdict.faults
    assert verdict.mishaps.total() >= 2
    assert verdict.answered + verdict.vanished + verdict.at_three_deaths == PLAN.num_requests
