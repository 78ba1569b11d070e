"""Workers that change their role, and how busy each role is, over the controller's gRPC face."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.autoscale.autoscaler import Autoscaler
from cluster.control_service import ControlServer
from cluster.controller import Controller
from cluster.fleet import RoleChangeError
from cluster.fleet_worker import WorkerState
from cluster.spec import ClusterSpec
from rpc import control_pb2, control_pb2_grpc, worker_pb2
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import all_ready, running, spec, until
from tests.unit.cluster.test_fleet import ready_fleet

TO_PREFILL = control_pb2.SetRoleRequest(worker="decode-1", role=worker_pb2.ROLE_PREFILL, expected_epoch=1)


@asynccontextmanager
async def control(controller: Controller) -> AsyncIterator[Any]:
    server = ControlServer(controller, Autoscaler(controller))
    port = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield control_pb2_grpc.ControlStub(channel)
    await server.stop()


async def test_a_worker_drains_and_comes_back_in_its_new_role(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller, control(controller) as stub:
        before = await until(controller, all_ready(3))
        launcher.newest("decode-1").drain_may_end.clear()
        assert (await stub.SetRole(TO_PREFILL)).role_epoch == 2
        draining = await until(controller, lambda s: not all_ready(3)(s))
        (member,) = (m for m in draining.members if m.worker == "decode-1")
        assert (member.role, member.role_epoch, member.state) == ("decode", 1, WorkerState.DRAINING)
        assert controller.fleet.desired == {"prefill": 2, "decode": 1, "mixed": 0, "pool": 0}

        launcher.newest("decode-1").drain_may_end.set()
        after = await until(controller, all_ready(3))
        (member,) = (m for m in after.members if m.worker == "decode-1")
        assert (member.role, member.role_epoch) == ("prefill", 2)
        assert member.incarnation not in {m.incarnation for m in before.members}
        told = launcher.newest("decode-1").spec
        assert (told.role, told.role_epoch) == ("prefill", 2)
        first, second = (worker for worker in launcher.workers if worker.spec.name == "decode-1")
        assert first.process == second.process
        assert not first.was_stopped
        assert second.num_restarts == 0


async def test_a_process_that_cannot_be_kept_is_ended_and_the_role_starts_in_another(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller:
        await until(controller, all_ready(3))
        launcher.newest("decode-1").release_error = "it hangs"
        controller.set_role("decode-1", "prefill", 1, 1.0)
        await until(controller, lambda s: all_ready(3)(s) and any(m.role_epoch == 2 for m in s.members))
        first, second = (worker for worker in launcher.workers if worker.spec.name == "decode-1")
        assert first.process != second.process
        assert first.was_stopped


async def test_pools_at_different_places_share_no_process(tmp_path: Path) -> None:
    pools = {"prefill": {"replicas": 1, "placement": {"labels": {"a": "b"}}}, "decode": {"replicas": 2}}
    launcher, apart = InMemoryLauncher(), ClusterSpec.model_validate({"pools": pools})
    async with running(launcher, tmp_path, apart) as controller:
        await until(controller, all_ready(3))
        controller.set_role("decode-1", "prefill", 1, 1.0)
        await until(controller, lambda s: all_ready(3)(s) and any(m.role_epoch == 2 for m in s.members))
        first, second = (worker for worker in launcher.workers if worker.spec.name == "decode-1")
        assert first.process != second.process


async def test_a_process_whose_worker_is_scaled_away_before_it_takes_its_new_role_is_ended(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller:
        await until(controller, all_ready(3))
        leaving = launcher.newest("decode-1")
        leaving.drain_may_end.clear()
        controller.set_role("decode-1", "mixed", 1, 1.0)
        controller.scale("mixed", 0)
        leaving.drain_may_end.set()
        await until(controller, all_ready(2))
        assert leaving.was_stopped


async def test_workers_that_exchange_kv_have_met_before_they_are_ready(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path) as controller:
        await until(controller, all_ready(2))
        controller.scale("prefill", 2)
        controller.scale("decode", 2)
        await until(controller, all_ready(4))
        prefill = {w.spec.incarnation for w in launcher.workers if w.spec.role == "prefill"}
        for worker in launcher.workers:
            met = {peer.incarnation for peer in worker.met}
            assert met == (prefill if worker.spec.role == "decode" else set())


async def test_a_repeated_role_change_changes_nothing(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller, control(controller) as stub:
        await until(controller, all_ready(3))
        await stub.SetRole(TO_PREFILL)
        await until(controller, lambda s: all_ready(3)(s) and any(m.role_epoch == 2 for m in s.members))
        with pytest.raises(grpc.aio.AioRpcError, match="the role epoch of decode-1 is 2, not 1") as refused:
            await stub.SetRole(TO_PREFILL)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert controller.fleet.desired["prefill"] == 2


async def test_a_controller_that_starts_again_knows_the_role_and_its_epoch(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller:
        await until(controller, all_ready(3))
        controller.set_role("decode-1", "prefill", 1, 1.0)
        await until(controller, lambda s: all_ready(3)(s) and any(m.role_epoch == 2 for m in s.members))
        adopted = ready_fleet(decode=1)
        worker = launcher.newest("decode-1").spec
        adopted.adopt(worker.name, worker.role, worker.incarnation, 1, False, 0.0, worker.role_epoch)
        assert (adopted.workers["decode-1"].role, adopted.workers["decode-1"].role_epoch) == ("prefill", 2)


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"worker": "decode-9"}, grpc.StatusCode.NOT_FOUND, "decode-9"),
        ({"expected_epoch": 0}, grpc.StatusCode.FAILED_PRECONDITION, "role epoch"),
        ({"role": worker_pb2.ROLE_DECODE}, grpc.StatusCode.FAILED_PRECONDITION, "cannot become a decode"),
        ({"role": worker_pb2.ROLE_POOL}, grpc.StatusCode.INVALID_ARGUMENT, "prefill, decode or mixed"),
        ({"role": worker_pb2.ROLE_UNSPECIFIED}, grpc.StatusCode.INVALID_ARGUMENT, "prefill, decode or mixed"),
        ({"worker": "decode-0"}, grpc.StatusCode.FAILED_PRECONDITION, "no worker that generates"),
        ({"timeout_s": -1.0}, grpc.StatusCode.INVALID_ARGUMENT, "timeout_s -1"),
        ({"timeout_s": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT, "timeout_s nan"),
    ],
)
async def test_a_role_change_that_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, changed: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    async with running(InMemoryLauncher(), tmp_path, spec()) as controller, control(controller) as stub:
        await until(controller, all_ready(2))
        request = control_pb2.SetRoleRequest(worker="prefill-0", role=worker_pb2.ROLE_MIXED, expected_epoch=1)
        if changed.get("worker") == "decode-0":
            request.role = worker_pb2.ROLE_PREFILL
        if changed.get("role") == worker_pb2.ROLE_DECODE:
            request.worker = "decode-0"
        for name, value in changed.items():
            setattr(request, name, value)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.SetRole(request)
        assert refused.value.code() is code
        assert words in (refused.value.details() or "")
        assert controller.fleet.desired == {"prefill": 1, "decode": 1, "mixed": 0, "pool": 0}


def test_a_worker_that_drains_already_cannot_change_its_role() -> None:
    fleet = ready_fleet(decode=2)
    fleet.drain("decode-0")
    with pytest.raises(RoleChangeError, match="draining"):
        fleet.set_role("decode-0", "mixed", 1)


def test_a_worker_that_changes_its_role_may_be_scaled_away_meanwhile() -> None:
    fleet = ready_fleet(decode=2)
    retire = fleet.set_role("decode-1", "mixed", 1)
    fleet.scale("mixed", 0)
    assert fleet.plan(1.0) == []
    fleet.ended("decode-1", retire.incarnation, "stopped", 2.0)
    assert set(fleet.workers) == {"decode-0"}
    assert fleet.plan(3.0) == []


async def test_the_load_of_each_role_is_summed(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, spec(decode=2)) as controller, control(controller) as stub:
        await until(controller, all_ready(3))
        launcher.newest("decode-0").num_running = 3
        launcher.newest("decode-1").num_running = 4
        prefill, decode, mixed = (await stub.GetLoad(control_pb2.GetLoadRequest())).pools
        assert (prefill.role, prefill.num_ready, prefill.num_running) == (worker_pb2.ROLE_PREFILL, 1, 0)
        assert (decode.num_desired, decode.num_ready, decode.num_reporting, decode.num_running) == (2, 2, 2, 7)
        assert decode.kv_usage == 0.25
        assert (mixed.num_desired, mixed.num_ready, mixed.kv_usage) == (0, 0, 0.0)
