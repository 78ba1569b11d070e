"""`pdserve drill chaos`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.chaos.drill import Drill, Place, Plan
from bench.chaos.fleet import ControlledFleet
from bench.chaos.verdict import Verdict
from bench.cluster import running
from deploy.cluster_folder import keep_logs
from deploy.cluster_state import default_store
from deploy.config import DEFAULT_FILE
from deploy.errors import CommandError
from deploy.model_store import default_cache_dir, resolve_model
from proxy.workers.channel import open_channel
from rpc import control_pb2_grpc

NAME = "chaos"
MODEL = "smollm2-135m-instruct"
SETTINGS = {
    "cluster.pools.prefill.replicas": 2,
    "cluster.pools.decode.replicas": 2,
    "cluster.engine.num_blocks": 512,
    "cluster.drain_timeout_s": 10,
    "cluster.restart.longest_delay_s": 2,  # a worker is killed again and again
}


def run(num_requests: int, seed: int, *, clients_vanish: bool, scales: bool, output: Path | None) -> None:
    """Raises CommandError when anything was not as it should be."""
    console = Console(highlight=False)
    folder = resolve_model(MODEL, default_cache_dir(os.environ))
    plan = Plan(seed, num_requests, clients_vanish=clients_vanish)
    console.print(f"starting the cluster {NAME}: 2 prefill, 2 decode")
    with running(DEFAULT_FILE, SETTINGS, NAME) as status:
        verdict = asyncio.run(_drill(plan, status, folder, console, scales=scales))
        _show(console, verdict)
        if not verdict.is_good:
            store = default_store(os.environ)
            kept = keep_logs(Path(status["cluster"]["log_dir"]).parent, store.kept_logs(NAME))
    if output is not None:
        with output.open("a") as file:
            file.write(f"\n{verdict.markdown(_command(plan, scales=scales))}")
    if not verdict.is_good:
        raise CommandError(f"{len(verdict.faults)} faults; the logs are kept in {kept}")


async def _drill(plan: Plan, status: dict[str, Any], folder: Path, console: Console, *, scales: bool) -> Verdict:
    controller = status["controller"]["address"]
    log = Path(status["cluster"]["log_dir"]) / "drill-proxy.log"
    place = Place(controller, folder, status["cluster"]["model"], log)
    async with open_channel(controller) as channel:
        fleet = ControlledFleet(control_pb2_grpc.ControlStub(channel))
        return await Drill(plan, fleet, place, console.print, fleet.scale if scales else None).run()


def _show(console: Console, verdict: Verdict) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for row in verdict.rows():
        table.add_row(*row)
    console.print(table)
    for fault in verdict.faults:
        console.print(fault, markup=False, soft_wrap=True)


def _command(plan: Plan, *, scales: bool) -> str:
    words = ["pdserve drill chaos", f"--requests {plan.num_requests}", f"--seed {plan.seed}"]
    words += ["--clients-vanish"] if plan.clients_vanish else []
    return " ".join([*words, "--scale"] if scales else words)
