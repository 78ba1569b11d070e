"""`pdserve replace` leaves no worker as it was, and no pool smaller than it was at any time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.autoscale.autoscaler import Autoscaler
from cluster.control_service import ControlServer
from cluster.controller import Controller
from cluster.fleet_worker import WorkerState
from cluster.spec import ClusterSpec
from deploy.commands.replace import replace_all
from deploy.control_client import ControlClient
from deploy.errors import CommandError
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import all_ready, running, spec, until


async def replace(controller: Controller) -> list[str]:
    """Who was replaced."""
    server = ControlServer(controller, Autoscaler(controller))
    port = await server.start("127.0.0.1:0")
    replaced: list[str] = []

    def work() -> None:
        with ControlClient(f"127.0.0.1:{port}") as client:
            replace_all(client, replaced.append)

    try:
        await asyncio.to_thread(work)
    finally:
        await server.stop()
    return replaced


async def test_every_worker_is_another_one_and_each_role_had_its_number_of_ready_workers_all_the_time(
    tmp_path: Path,
) -> None:
    async with running(InMemoryLauncher(), tmp_path, spec(decode=2)) as controller:
        before = {m.incarnation for m in (await until(controller, all_ready(3))).members}
        fewest = {"prefill": 99, "decode": 99}

        async def watch() -> None:
            async for snapshot in controller.membership.subscribe():
                for role in fewest:
                    ready = sum(m.role == role and m.state is WorkerState.READY for m in snapshot.members)
                    fewest[role] = min(fewest[role], ready)

        watching = asyncio.create_task(watch())
        assert sorted(await replace(controller)) == ["decode-0", "decode-1", "prefill-0"]
        watching.cancel()
        after = await until(controller, all_ready(3))
        assert not before & {member.incarnation for member in after.members}
        assert fewest == {"prefill": 1, "decode": 2}


async def test_a_pool_has_its_old_size_after_a_failure(tmp_path: Path) -> None:
    launcher = InMemoryLauncher(start_errors={"prefill-1": "no memory"})
    async with running(launcher, tmp_path) as controller:
        await until(controller, all_ready(2))
        with pytest.raises(CommandError, match="prefill-1 could not start: no memory"):
            await replace(controller)
        assert controller.fleet.desired["prefill"] == 1
        await until(controller, all_ready(2))


async def test_a_pool_whose_groups_are_full_is_replaced_without_one_more(tmp_path: Path) -> None:
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 2, "groups": [{"name": "a", "most": 2}]}}
    full = ClusterSpec.model_validate({"pools": pools, "drain_timeout_s": 3.0})
    async with running(InMemoryLauncher(), tmp_path, full) as controller:
        before = {m.incarnation for m in (await until(controller, all_ready(3))).members}
        assert sorted(await replace(controller)) == ["decode-0", "decode-1", "prefill-0"]
        after = await until(controller, all_ready(3))
        assert not before & {member.incarnation for member in after.members}
        assert [m.group for m in after.members if m.role == "decode"] == ["a", "a"]
