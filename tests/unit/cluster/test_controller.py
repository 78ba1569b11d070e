"""The control loop over processes that are objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cluster.control_service import members_message
from cluster.controller import Controller
from cluster.desired_file import DesiredFile
from cluster.fleet import UnknownWorkerError
from cluster.fleet_worker import WorkerState
from cluster.membership import Snapshot
from cluster.spec import ClusterSpec, ProxySpec
from rpc import worker_pb2
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher

PROXY = ProxySpec(command=("proxy",), grpc_address="127.0.0.1:1", http_address="127.0.0.1:2")


def spec(prefill: int = 1, decode: int = 1, pool: int = 0) -> ClusterSpec:
    restart = {"first_delay_s": 0.0, "max_failed_starts": 2}
    pools = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    settings = {"pools": pools, "kv_pool": {"nodes": pool}, "restart": restart, "drain_timeout_s": 3.0}
    return ClusterSpec.model_validate(settings)


@asynccontextmanager
async def running(
    launcher: InMemoryLauncher, folder: Path, a_spec: ClusterSpec | None = None
) -> AsyncIterator[Controller]:
    desired_file = DesiredFile(folder / "desired.json")
    controller = Controller(a_spec or spec(), "/model", launcher, desired_file, PROXY)
    await controller.adopt()
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        await controller.shut_down()
        async with asyncio.timeout(5):
            await task


async def until(controller: Controller, holds: Callable[[Snapshot], bool]) -> Snapshot:
    async with asyncio.timeout(5):
        async for snapshot in controller.membership.subscribe():
            if holds(snapshot):
                return snapshot
    raise AssertionError("the membership never ends")


def states(snapshot: Snapshot) -> dict[str, str]:
    return {member.worker: member.state.value for member in snapshot.members}


def all_ready(num_workers: int) -> Callable[[Snapshot], bool]:
    return lambda s: len(s.members) == num_workers and all(m.state is WorkerState.READY for m in s.members)


async def test_the_cluster_comes_up_with_every_worker_ready_and_a_proxy(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        snapshot = await until(controller, all_ready(2))
        assert {member.worker for member in snapshot.members} == {"prefill-0", "decode-0"}
        assert all(member.addresses is not None for member in snapshot.members)
        proxy = await controller.proxy.describe()
        assert proxy is not None
        assert proxy.pid == 9
    assert launcher.living == []
    assert not launcher.proxies[0].is_alive


async def test_a_dead_worker_is_replaced_by_a_new_incarnation_and_nothing_else_is_touched(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        before = {m.worker: m.incarnation for m in (await until(controller, all_ready(2))).members}
        launcher.newest("decode-0").die("killed")
        snapshot = await until(controller, lambda s: all_ready(2)(s) and s.members[1].incarnation != before["decode-0"])
        after = {m.worker: m.incarnation for m in snapshot.members}
        assert after["prefill-0"] == before["prefill-0"]
        status = {status.member.worker: status for status in await controller.list_workers()}
        assert (status["decode-0"].num_restarts, status["decode-0"].last_error) == (1, "killed")
        assert status["prefill-0"].num_restarts == 0


async def test_a_dead_pool_node_is_replaced_by_a_new_incarnation_of_its_name(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(pool=2)) as controller:
        before = {m.worker: m.incarnation for m in (await until(controller, all_ready(4))).members}
        launcher.newest("pool-1").die("killed")
        snapshot = await until(controller, lambda s: all_ready(4)(s) and s.members[3].incarnation != before["pool-1"])
        message = members_message(snapshot, "controller")
        assert [member.worker for member in message.members] == ["prefill-0", "decode-0"]
        assert [(node.worker, node.role) for node in message.pool_nodes] == [
            ("pool-0", worker_pb2.ROLE_POOL),
            ("pool-1", worker_pb2.ROLE_POOL),
        ]
        assert message.pool_nodes[0].incarnation == before["pool-0"]


async def test_a_worker_that_never_starts_is_given_up_and_its_error_is_listed(tmp_path: Path) -> None:
    launcher = InMemoryLauncher(start_errors={"decode-0": "ValueError: architecture gpt2 is unknown"})
    async with running(launcher, tmp_path) as controller:
        await until(controller, lambda s: states(s).get("decode-0") == "failed")
        statuses = {status.member.worker: status for status in await controller.list_workers()}
        assert statuses["decode-0"].last_error == "ValueError: architecture gpt2 is unknown"
        assert statuses["decode-0"].report is None
        assert len([w for w in launcher.workers if w.spec.name == "decode-0"]) == 2


async def test_scaling_up_starts_and_scaling_down_drains_then_stops(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        await until(controller, all_ready(2))
        assert controller.scale("decode", 2) == 1
        await until(controller, all_ready(3))
        leaving = launcher.newest("decode-1")
        leaving.drain_may_end.clear()
        controller.scale("decode", 1)
        await until(controller, lambda s: states(s).get("decode-1") == "draining")
        assert leaving.is_alive
        leaving.drain_may_end.set()
        await until(controller, lambda s: "decode-1" not in states(s))
        assert leaving.drained_for_s == 3.0
        assert launcher.living == ["decode-0", "prefill-0"]


async def test_drain_tells_how_many_requests_were_cut_and_another_worker_comes(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        await until(controller, all_ready(2))
        launcher.newest("decode-0").num_running = 2
        assert await controller.drain("decode-0", timeout_s=0.5) == 2
        snapshot = await until(controller, all_ready(2))
        assert set(states(snapshot)) == {"prefill-0", "decode-1"}


async def test_two_drains_of_one_worker_are_one(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        await until(controller, all_ready(2))
        worker = launcher.newest("decode-0")
        worker.num_running = 1
        cut = await asyncio.gather(controller.drain("decode-0", 1.0), controller.drain("decode-0", 2.0))
        assert list(cut) == [1, 1]
        assert worker.drained_for_s == 1.0


async def test_draining_an_unknown_worker_is_an_error(tmp_path: Path) -> None:
    async with running(InMemoryLauncher(), tmp_path) as controller:
        await until(controller, all_ready(2))
        with pytest.raises(UnknownWorkerError):
            await controller.drain("decode-7", 1.0)


async def test_a_worker_that_says_it_cannot_go_on_is_drained_and_replaced(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        await until(controller, all_ready(2))
        broken = launcher.newest("decode-0")
        broken.drain_may_end.clear()
        broken.break_down("5 staging slots are in doubt")
        await until(controller, lambda s: states(s) == {"prefill-0": "ready", "decode-0": "draining"})
        assert len(launcher.workers) == 2
        broken.drain_may_end.set()
        await until(controller, all_ready(2))
        assert not broken.is_alive
        assert broken.drained_for_s == 0
        statuses = {status.member.worker: status for status in await controller.list_workers()}
        assert statuses["decode-0"].last_error == "5 staging slots are in doubt"


async def test_a_restarted_controller_adopts_living_workers_and_keeps_the_scaled_size(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    desired_file = DesiredFile(tmp_path / "desired.json")
    first = Controller(spec(), "/model", launcher, desired_file, PROXY)
    task = asyncio.create_task(first.run())
    await until(first, all_ready(2))
    first.scale("decode", 2)
    before = {m.worker: m.incarnation for m in (await until(first, all_ready(3))).members}
    task.cancel()
    await asyncio.wait([task])
    launcher.newest("prefill-0").die("killed while no controller was there")

    async with running(launcher, tmp_path) as second:
        after = {m.worker: m.incarnation for m in (await until(second, all_ready(3))).members}
        assert second.incarnation != first.incarnation
        assert (after["decode-0"], after["decode-1"]) == (before["decode-0"], before["decode-1"])
        assert after["prefill-0"] != before["prefill-0"]
        assert len(launcher.proxies) == 1


async def test_nothing_is_published_before_living_workers_are_adopted(tmp_path: Path) -> None:
    controller = Controller(spec(), "/model", InMemoryLauncher(), DesiredFile(tmp_path / "desired.json"), PROXY)
    await controller.adopt()
    assert controller.membership.snapshot.version == 0


async def test_a_drain_that_a_controller_left_unfinished_is_finished_by_the_next(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    first = Controller(spec(), "/model", launcher, DesiredFile(tmp_path / "desired.json"), PROXY)
    task = asyncio.create_task(first.run())
    await until(first, all_ready(2))
    leaving = launcher.newest("decode-0")
    leaving.drain_may_end.clear()
    drain = asyncio.create_task(first.drain("decode-0", 1.0))
    await until(first, lambda s: states(s).get("decode-0") == "draining" and states(s).get("decode-1") == "ready")
    task.cancel()
    await asyncio.wait([task, drain])
    leaving.drain_may_end.set()
    async with running(launcher, tmp_path) as second:
        await until(second, lambda s: states(s) == {"prefill-0": "ready", "decode-1": "ready"})
        assert not leaving.is_alive


async def test_a_dead_proxy_runner_is_replaced(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        await until(controller, all_ready(2))
        launcher.proxy_launched.clear()
        launcher.proxies[0].die("killed")
        async with asyncio.timeout(5):
            await launcher.proxy_launched.wait()
        assert [proxy.is_alive for proxy in launcher.proxies] == [False, True]


async def test_a_worker_without_a_machine_waits_for_one_and_says_so(tmp_path: Path) -> None:
    launcher = InMemoryLauncher(placeless={"decode-0"})
    async with running(launcher, tmp_path) as controller:
        await until(controller, lambda s: states(s) == {"prefill-0": "ready", "decode-0": "waiting"})
        [decode] = [status for status in await controller.list_workers() if status.member.role == "decode"]
        assert decode.last_error == "no machine for decode-0"
        launcher.placeless.clear()
        await until(controller, all_ready(2))
        assert controller.fleet.workers["decode-0"].failed_starts == 0
