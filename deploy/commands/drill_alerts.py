"""`pdserve drill alerts`."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import httpx
import yaml
from rich.console import Console

from bench.alerts.alert_watch import AlertWatch
from bench.alerts.drill import Drill, Outcome
from bench.chaos.fleet import ControlledFleet
from bench.cluster import running
from bench.fake_model import write_fake_model
from bench.free_port import free_port
from bench.table import markdown_table
from deploy.cluster_state import ClusterState, default_store
from deploy.config import DEFAULT_FILE
from deploy.dashboards.alerts import rules
from deploy.errors import CommandError
from deploy.prometheus import ALERTS_FILE, find_prometheus
from engine.fake_runner import FakeModel
from proxy.workers.channel import open_channel
from rpc import control_pb2_grpc

NAME = "alerts"
PACE = FakeModel(seconds_per_step=0.01, seconds_per_token=0.01)  # 32 streams: a third of a second for each token
SETTINGS = {
    "cluster.pools.prefill.replicas": 1,
    "cluster.pools.decode.replicas": 2,
    "cluster.engine.num_blocks": 72,
    "cluster.engine.scheduling.max_num_seqs": 32,
    "cluster.drain_timeout_s": 5,
    "proxy.local_prefill": "if_needed",
    "proxy.max_queued_requests": 16,
    "proxy.request_timeout_s": 60,
}


def run(speed: float, output: Path | None) -> None:
    """Raises CommandError when an alert did not fire, or not clear."""
    find_prometheus()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as scratch:
        model = write_fake_model(Path(scratch) / "fake", PACE)
        settings = {**SETTINGS, "cluster.model": str(model), "prometheus.port": free_port()}
        console.print(f"starting the cluster {NAME}: 1 prefill, 2 decode, and a Prometheus")
        with running(DEFAULT_FILE, settings, NAME, "--with-prometheus") as status:
            state = default_store(os.environ).read(NAME)
            _load_rules(state, speed)
            outcomes = asyncio.run(_drill(status, state, speed, console))
    table = _table(outcomes)
    console.print(table, markup=False)
    if output is not None:
        with output.open("a") as file:
            file.write(f"\n`pdserve drill alerts --speed {speed:g}`\n\n{table}")
    if bad := [outcome.alert for outcome in outcomes if not outcome.is_good]:
        raise CommandError(f"these did not fire, or not clear: {', '.join(bad)}")


def _load_rules(state: ClusterState, speed: float) -> None:
    assert state.prometheus is not None
    (Path(state.folder) / "prometheus" / ALERTS_FILE.name).write_text(yaml.safe_dump(rules(speed)))
    os.kill(state.prometheus.pid, signal.SIGHUP)


async def _drill(status: dict[str, Any], state: ClusterState, speed: float, console: Console) -> list[Outcome]:
    async with open_channel(status["controller"]["address"]) as channel, httpx.AsyncClient(trust_env=False) as client:
        fleet = ControlledFleet(control_pb2_grpc.ControlStub(channel))
        watch = AlertWatch(client, f"http://127.0.0.1:{state.prometheus_port}")
        proxy = status["proxy"]
        drill = Drill(proxy["http"], status["cluster"]["model"], proxy["pid"], fleet, watch, speed)
        return await drill.run(console.print)


def _table(outcomes: list[Outcome]) -> str:
    headings = ("alert", "fired after s", "cleared after s", "what was done")
    rows = [(o.alert, _seconds(o.fired_s), _seconds(o.cleared_s), o.mishap) for o in outcomes]
    return markdown_table(headings, rows)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f}"
