"""The autoscaler over a controller whose processes are objects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cluster.autoscale.autoscaler import Autoscaler
from cluster.autoscale.judge import AtLimit, Resize, RoleChange
from cluster.controller import Controller
from cluster.scale_events import ScaleEvent
from cluster.spec import ClusterSpec
from rpc import control_pb2
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import all_ready, running, until

AT_ONCE = {"enabled": True, "up_after_s": 0.0, "down_after_s": 3600.0, "cooldown_s": 0.0}


class Rig:
    """An autoscaler, and hands on what it sees."""

    def __init__(self, controller: Controller, launcher: InMemoryLauncher) -> None:
        self.controller = controller
        self.launcher = launcher
        self.autoscaler = Autoscaler(controller)

    def work(self, prefill_tokens: int, decode_tokens: int) -> None:
        """What every worker of a role has computed in its next second: of the other kind, nothing."""
        for worker in self.launcher.workers:
            load, is_prefill = worker.load, worker.spec.role == "prefill"
            load.num_free_blocks = 95
            load.num_steps += 10
            load.step_s += 1.0 if is_prefill else 0.5 + 0.0005 * decode_tokens
            load.num_prefill_tokens += prefill_tokens if is_prefill else 0
            load.num_decode_tokens += 0 if is_prefill else decode_tokens

    def report(self, per_s: int, prompt_tokens: int, generated_tokens: int = 10) -> None:
        """Half a minute of requests, all answered in time."""
        num = 30 * per_s
        told = control_pb2.ClassTraffic(
            priority="interactive",
            num_arrived=num,
            num_prompt_tokens=num * prompt_tokens,
            num_ended=num,
            num_ended_prompt_tokens=num * prompt_tokens,
            num_ended_prefill_tokens=num * prompt_tokens,
            num_generated_tokens=num * generated_tokens,
            first_token_s=[0.1] * 50,
            per_token_s=[0.01] * 50,
        )
        self.autoscaler.reported(control_pb2.TrafficReport(proxy_incarnation="proxy", span_s=30.0, classes=[told]))


@asynccontextmanager
async def rig(folder: Path, prefill: int = 1, decode: int = 1, **settings: object) -> AsyncIterator[Rig]:
    launcher = InMemoryLauncher()
    pools = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    spec = ClusterSpec.model_validate({"pools": pools, "autoscale": {**AT_ONCE, **settings}})
    async with running(launcher, folder, spec) as controller:
        await until(controller, all_ready(prefill + decode))
        yield Rig(controller, launcher)


async def test_more_prompts_than_a_worker_can_compute_bring_more_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as made:
        made.report(per_s=20, prompt_tokens=100)
        with caplog.at_level(logging.INFO):
            for _ in range(2):  # the second look sees what was done since the first
                made.work(prefill_tokens=1000, decode_tokens=100)
                verdict = await made.autoscaler.look()
        assert isinstance(verdict, Resize)
        assert (verdict.role, verdict.before, verdict.after, verdict.reason) == ("prefill", 1, 3, "load")
        assert made.controller.fleet.desired["prefill"] == 3
        assert made.controller.scale_events.counts == {ScaleEvent("prefill", "up", "load"): 1}
        assert "autoscale: prefill 1 → 3, load: 2000 prompt tokens/s of 1.00 ms keep 2.00 workers busy" in caplog.text


async def test_nothing_is_changed_while_no_proxy_reports_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as made:
        for _ in range(3):
            made.work(prefill_tokens=1000, decode_tokens=100)
            assert await made.autoscaler.look() is None
        assert caplog.text.count("no proxy has reported") == 1


async def test_the_least_busy_workers_change_their_role(tmp_path: Path) -> None:
    async with rig(tmp_path, prefill=1, decode=3, max_workers=4) as made:
        made.launcher.newest("decode-0").num_running = 2
        made.launcher.newest("decode-2").num_running = 1
        for tokens in (100, 300, 500, 700, 900):  # steps that differ, so that it is known what more streams cost
            made.work(prefill_tokens=1000, decode_tokens=tokens)
            assert await made.autoscaler.look() is None
        made.report(per_s=8, prompt_tokens=200)
        verdict = await made.autoscaler.look()
        assert isinstance(verdict, RoleChange)
        assert (verdict.role, verdict.giver, verdict.count) == ("prefill", "decode", 2)
        changing = {w.name for w in made.controller.fleet.workers.values() if w.next_role == "prefill"}
        assert changing == {"decode-1", "decode-2"}
        assert made.controller.scale_events.num_role_flips == 2
        assert made.controller.scale_events.counts[ScaleEvent("prefill", "up", "mix")] == 2


async def test_a_lack_beyond_the_limits_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(tmp_path, max_workers=2) as made:
        made.report(per_s=20, prompt_tokens=100)
        for _ in range(4):
            made.work(prefill_tokens=1000, decode_tokens=100)
            verdict = await made.autoscaler.look()
        assert isinstance(verdict, AtLimit)
        assert caplog.text.count("prefill lacks workers") == 1
        assert made.controller.fleet.desired["prefill"] == 1


async def test_after_an_operators_change_a_pool_rests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(tmp_path, cooldown_s=3600.0) as made:
        made.controller.scale("prefill", 2)
        await until(made.controller, all_ready(3))
        made.report(per_s=50, prompt_tokens=100)
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                made.work(prefill_tokens=1000, decode_tokens=100)
                assert await made.autoscaler.look() is None
        assert "prefill has 2 workers by hand, 1 before" in caplog.text
        assert made.controller.fleet.desired["prefill"] == 2


async def test_while_workers_start_nothing_is_decided_about_their_pool(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.report(per_s=20, prompt_tokens=100)
        made.work(prefill_tokens=1000, decode_tokens=100)
        await made.autoscaler.look()
        made.launcher.newest("prefill-0").drain_may_end.clear()
        drain = asyncio.create_task(made.controller.drain("prefill-0", 1.0))
        await until(made.controller, lambda s: any(m.state.value == "draining" for m in s.members))
        made.work(prefill_tokens=1000, decode_tokens=100)
        assert await made.autoscaler.look() is None
        made.launcher.newest("prefill-0").drain_may_end.set()
        await drain


async def test_a_look_that_fails_is_logged_and_the_next_one_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path, every_s=0.01) as made:
        made.launcher.newest("decode-0").describe_error = ZeroDivisionError("confused")
        scaling = asyncio.create_task(made.autoscaler.run())
        async with asyncio.timeout(20):
            while "this look failed" not in caplog.text:  # noqa: ASYNC110  a log line announces nothing
                await asyncio.sleep(0.01)
        made.launcher.newest("decode-0").describe_error = None
        made.report(per_s=20, prompt_tokens=100)
        async with asyncio.timeout(20):
            while made.controller.fleet.desired["prefill"] == 1:
                made.work(prefill_tokens=1000, decode_tokens=100)
                await asyncio.sleep(0.01)
        scaling.cancel()
