"""What the controller exports to Prometheus."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from bench.metric_sum import metric_sum
from cluster.control_metrics import ControlMetricsServer
from cluster.controller import Controller
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import all_ready, running, states, until


async def scraped(controller: Controller) -> str:
    server = ControlMetricsServer.start(controller)
    try:
        return (await asyncio.to_thread(httpx.get, f"http://{server.address}/metrics", timeout=20)).text
    finally:
        await asyncio.to_thread(server.stop)


async def test_every_pool_s_workers_are_told_by_state_beside_how_many_are_wanted(tmp_path: Path) -> None:
    async with running(InMemoryLauncher(), tmp_path) as controller:
        await until(controller, all_ready(2))
        text = await scraped(controller)
    assert metric_sum(text, "pdserve_workers", {"role": "prefill", "state": "ready"}) == 1
    assert metric_sum(text, "pdserve_workers", {"role": "decode"}) == 1
    assert metric_sum(text, "pdserve_desired_workers", {"role": "decode"}) == 1
    assert 'pdserve_workers{model_name="smollm2-135m-instruct",role="mixed",state="failed"} 0.0' in text


async def test_a_change_by_hand_is_told_with_its_direction(tmp_path: Path) -> None:
    async with running(InMemoryLauncher(), tmp_path) as controller:
        await until(controller, all_ready(2))
        assert metric_sum(await scraped(controller), "pdserve_scale_events_total", {}) == 0
        controller.scale("decode", 2)
        await until(controller, all_ready(3))
        text = await scraped(controller)
    assert metric_sum(text, "pdserve_scale_events_total", {"role": "decode", "direction": "up"}) == 1
    assert metric_sum(text, "pdserve_scale_events_total", {}) == 1
    assert metric_sum(text, "pdserve_desired_workers", {"role": "decode"}) == 2


async def test_a_worker_s_restarts_go_with_it(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        controller.scale("decode", 2)
        await until(controller, all_ready(3))
        launcher.newest("decode-1").die("killed")
        await until(controller, lambda s: all_ready(3)(s) and launcher.newest("decode-1").num_restarts == 1)
        assert metric_sum(await scraped(controller), "pdserve_worker_restarts_total", {"worker": "decode-1"}) == 1
        controller.scale("decode", 1)
        await until(controller, lambda s: "decode-1" not in states(s))
        assert "decode-1" not in await scraped(controller)


async def test_a_role_change_is_one_flip_and_two_scale_events(tmp_path: Path) -> None:
    async with running(InMemoryLauncher(), tmp_path) as controller:
        controller.scale("decode", 2)
        await until(controller, all_ready(3))
        controller.set_role("decode-1", "prefill", 1, 1.0)
        text = await scraped(controller)
    assert metric_sum(text, "pdserve_role_flips_total", {}) == 1
    assert metric_sum(text, "pdserve_scale_events_total", {"role": "prefill", "direction": "up"}) == 1
    assert metric_sum(text, "pdserve_scale_events_total", {"role": "decode", "direction": "down"}) == 1
