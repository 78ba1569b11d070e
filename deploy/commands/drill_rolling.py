"""`pdserve drill rolling`: every worker of a cluster of the fake model is replaced while questions are asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console

from bench.chaos.fleet import ControlledFleet
from bench.cluster import running
from bench.fake_model import write_fake_model
from bench.rolling import Outcome, Plan, RollingDrill
from bench.table import markdown_table
from deploy.cluster_folder import keep_logs
from deploy.cluster_state import default_store
from deploy.commands.replace import replace_all
from deploy.config import DEFAULT_FILE
from deploy.control_client import ControlClient
from deploy.errors import CommandError
from engine.fake_runner import FakeModel
from proxy.workers.channel import open_channel
from rpc import control_pb2_grpc

NAME = "rolling"
PACE = FakeModel(seconds_per_step=0.03)  # so that long answers outlive a drain
SETTINGS = {
    "cluster.pools.prefill.replicas": 2,
    "cluster.pools.decode.replicas": 2,
    "cluster.engine.num_blocks": 1024,
    "cluster.drain_timeout_s": 2,
    "proxy.local_prefill": "if_needed",
}
CLIENT_TIMEOUT_S = 300.0  # above a request's own


def run(seed: int, output: Path | None) -> None:
    """Raises CommandError when anything was not as it should be."""
    console, plan = Console(highlight=False), Plan(seed)
    with TemporaryDirectory(prefix="pdserve-drill-") as folder:
        settings = {**SETTINGS, "cluster.model": str(write_fake_model(Path(folder) / "fake", PACE))}
        console.print(f"starting the cluster {NAME}: 2 prefill, 2 decode")
        with running(DEFAULT_FILE, settings, NAME) as status:
            try:
                outcome = asyncio.run(_drill(plan, status, lambda text: console.print(text, markup=False)))
            except CommandError as error:
                raise CommandError(f"{error}\n{_keep_logs(status)}") from error
            faults = list(outcome.faults)
            kept = _keep_logs(status) if faults else ""
    table = markdown_table(("what", "how many"), outcome.rows())
    console.print(table, markup=False)
    if output is not None:
        lines = "".join(f"- {fault}\n" for fault in faults) or "No fault.\n"
        with output.open("a") as file:
            file.write(f"\n`pdserve drill rolling --seed {seed}`\n\n{table}\n{lines}")
    if faults:
        raise CommandError("\n".join([*faults, kept]))


async def _drill(plan: Plan, status: dict[str, Any], say: Callable[[str], None]) -> Outcome:
    controller, proxy = status["controller"]["address"], status["proxy"]["http"]

    async def replace(done: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()

        def tell(worker: str) -> None:
            loop.call_soon_threadsafe(done, worker)
            say(f"{worker} is replaced")

        say("replacing every worker under load")
        await asyncio.to_thread(_replace, controller, tell)

    limits = httpx.Limits(max_connections=None)
    async with (
        open_channel(controller) as channel,
        httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S, limits=limits, trust_env=False) as client,
    ):
        fleet = ControlledFleet(control_pb2_grpc.ControlStub(channel))
        say(f"{plan.num_questions} questions, undisturbed")
        return await RollingDrill(plan, client, proxy, status["cluster"]["model"], fleet).run(replace)


def _replace(controller: str, done: Callable[[str], None]) -> None:
    with ControlClient(controller) as client:
        replace_all(client, done)


def _keep_logs(status: dict[str, Any]) -> str:
    kept = keep_logs(Path(status["cluster"]["log_dir"]).parent, default_store(os.environ).kept_logs(NAME))
    return f"the logs are kept in {kept}"
