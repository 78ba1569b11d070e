"""Pools whose workers are not alike: who gets which group, and keeps it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import grpc
import pytest

from cluster.control_service import member_message
from cluster.controller import Controller
from cluster.desired_file import DesiredFile
from cluster.fleet import Fleet, NoRoomError, RoleChangeError
from cluster.fleet_action import Start
from cluster.group_limits import GroupLimits
from cluster.membership import Snapshot
from cluster.roles import RoleName
from cluster.spec import ClusterSpec
from rpc import control_pb2, worker_pb2
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import all_ready, running, until
from tests.unit.cluster.test_fleet import RESTART
from tests.unit.cluster.test_roles import control

BIG = {"name": "big", "most": 1, "engine": {"num_blocks": 4096}, "placement": {"labels": {"memory": "large"}}}
SMALL = {"name": "small", "most": 2, "engine": {"num_blocks": 64}}


def grouped(decode: int = 2, prefill_groups: tuple[object, ...] = ()) -> ClusterSpec:
    pools = {
        "prefill": {"replicas": 1, "groups": prefill_groups},
        "decode": {"replicas": decode, "groups": [BIG, SMALL]},
    }
    return ClusterSpec.model_validate(
        {"pools": pools, "engine": {"threads": 2}, "restart": {"first_delay_s": 0.0}, "drain_timeout_s": 3.0}
    )


def ready_without(incarnation: str) -> Callable[[Snapshot], bool]:
    return lambda s: all_ready(3)(s) and all(member.incarnation != incarnation for member in s.members)


def ready_in_another_role(name: str) -> Callable[[Snapshot], bool]:
    def holds(snapshot: Snapshot) -> bool:
        changed = any(member.worker == name and member.role_epoch == 2 for member in snapshot.members)
        return changed and all_ready(len(snapshot.members))(snapshot)

    return holds


def groups(snapshot: Snapshot) -> dict[str, str]:
    return {member.worker: member.group for member in snapshot.members}


def fleet(**desired: int) -> Fleet:
    """Decode workers in two groups, of one and two; prefill and mixed ones without groups. All are ready."""
    numbers = count(1)
    sizes: dict[RoleName, int] = {role: desired.get(role, 0) for role in ("prefill", "decode", "mixed")}
    limits: dict[RoleName, GroupLimits] = {"decode": GroupLimits((("big", 1), ("small", 2)))}
    a_fleet = Fleet(sizes, RESTART, lambda: f"i{next(numbers)}", limits=limits)
    settle(a_fleet)
    return a_fleet


def settle(a_fleet: Fleet) -> None:
    for action in a_fleet.plan(0.0):
        a_fleet.ready(action.name, action.incarnation, 0.0)


def where(a_fleet: Fleet) -> dict[str, str]:
    return {name: worker.group for name, worker in a_fleet.workers.items()}


def test_groups_are_filled_in_their_order() -> None:
    assert where(fleet(decode=3)) == {"decode-0": "big", "decode-1": "small", "decode-2": "small"}


def test_a_pool_shrinks_from_its_last_group() -> None:
    a_fleet = fleet(decode=3)
    a_fleet.ended("decode-0", a_fleet.drain("decode-0").incarnation, "stopped", 1.0)
    settle(a_fleet)
    assert where(a_fleet)["decode-0"] == "big"
    a_fleet.scale("decode", 1)
    assert {action.name for action in a_fleet.plan(2.0)} == {"decode-1", "decode-2"}


def test_who_comes_in_the_place_of_a_drained_worker_gets_its_group() -> None:
    a_fleet = fleet(decode=3)
    a_fleet.drain("decode-0")
    (start,) = a_fleet.plan(1.0)
    assert (start.name, a_fleet.workers["decode-3"].group) == ("decode-3", "big")


def test_a_dead_worker_starts_again_in_its_group_although_one_before_has_room() -> None:
    a_fleet = fleet(decode=3)
    a_fleet.set_role("decode-0", "prefill", 1)
    a_fleet.ended("decode-1", a_fleet.workers["decode-1"].incarnation, "killed", 5.0)
    (start,) = a_fleet.plan(10.0)
    assert start == Start("decode-1", "decode", start.incarnation, 1, group="small")


def test_more_workers_than_the_groups_have_room_for_are_refused_and_nothing_changes() -> None:
    a_fleet = fleet(decode=3)
    with pytest.raises(NoRoomError, match=r"4 workers are wanted, and the groups of decode have room for 3: ask for"):
        a_fleet.scale("decode", 4)
    assert a_fleet.desired["decode"] == 3


def test_a_role_change_into_full_groups_is_refused_and_nothing_changes() -> None:
    a_fleet = fleet(decode=3, prefill=2)
    with pytest.raises(RoleChangeError, match=r"most in cluster\.pools\.decode\.groups"):
        a_fleet.set_role("prefill-0", "decode", 1)
    a_fleet.scale("decode", 2)  # the third has not begun to leave
    with pytest.raises(RoleChangeError, match="full until a worker has left"):
        a_fleet.set_role("prefill-0", "decode", 1)
    assert a_fleet.desired["prefill"] == 2


def test_a_wish_of_another_configuration_is_fulfilled_as_far_as_the_groups_allow() -> None:
    a_fleet = fleet(decode=5)
    assert len(a_fleet.workers) == 3
    assert a_fleet.plan(1.0) == []


def test_a_role_change_takes_the_group_of_the_same_name_or_else_the_first_with_room() -> None:
    limits = GroupLimits((("a", 1), ("b", 2)))
    assert limits.choose({}, "b") == "b"
    assert limits.choose({"b": 2}, "b") == "a"
    assert limits.choose({}, "other") == "a"
    assert limits.choose({"a": 1, "b": 2}, "b") is None
    assert [limits.rank(name) for name in ("a", "b", "gone")] == [0, 1, 2]


async def test_each_worker_is_started_with_its_groups_settings_over_the_pools_and_is_listed_with_it(
    tmp_path: Path,
) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, grouped()) as controller, control(controller) as stub:
        snapshot = await until(controller, all_ready(3))
        assert groups(snapshot) == {"decode-0": "big", "decode-1": "small", "prefill-0": ""}
        first, second = launcher.newest("decode-0").spec, launcher.newest("decode-1").spec
        assert (first.group, first.engine.num_blocks, first.engine.threads) == ("big", 4096, 2)
        assert (second.group, second.engine.num_blocks, second.engine.threads) == ("small", 64, 2)
        assert (first.placement.labels, second.placement.labels) == ({"memory": "large"}, {})
        listing = await stub.ListWorkers(control_pb2.ListWorkersRequest())
        assert [info.member.group for info in listing.workers] == ["big", "small", ""]
        assert dict(listing.most) == {"decode": 3}


async def test_a_dead_worker_is_replaced_in_its_group(tmp_path: Path) -> None:
    launcher = InMemoryLauncher()
    async with running(launcher, tmp_path, grouped()) as controller:
        await until(controller, all_ready(3))
        for name in ("decode-0", "decode-1"):
            before = launcher.newest(name)
            before.die("killed")
            await until(controller, ready_without(before.spec.incarnation))
            assert launcher.newest(name).spec.group == before.spec.group
            assert launcher.newest(name).spec.incarnation != before.spec.incarnation


async def test_a_new_controller_knows_the_groups_of_those_it_adopts(tmp_path: Path) -> None:
    launcher, desired_file = InMemoryLauncher(), DesiredFile(tmp_path / "desired.json")
    async with running(launcher, tmp_path, grouped()) as controller:
        await until(controller, all_ready(3))
        second = Controller(grouped(), "/model", launcher, desired_file, proxy=None)
        await second.adopt()
        assert where(second.fleet) == {"prefill-0": "", "decode-0": "big", "decode-1": "small"}
        second.fleet.scale("decode", 3)
        (start,) = second.fleet.plan(0.0)
        assert second.fleet.workers[start.name].group == "small"


async def test_a_role_change_keeps_group_and_process_where_the_other_pool_has_a_group_at_the_same_place(
    tmp_path: Path,
) -> None:
    launcher, same = InMemoryLauncher(), ({"name": "other", "most": 1}, {**BIG, "most": 3})
    async with running(launcher, tmp_path, grouped(prefill_groups=same)) as controller:
        await until(controller, all_ready(3))
        for name, kept in (("decode-0", True), ("decode-1", False)):
            controller.scale("decode", 2)
            await until(controller, all_ready(len(controller.fleet.workers)))
            controller.set_role(name, "prefill", 1, 1.0)
            await until(controller, ready_in_another_role(name))
            first, second = (worker for worker in launcher.workers if worker.spec.name == name)
            assert (first.process == second.process) is kept
            assert second.spec.group == "big"
            assert second.spec.engine.num_blocks == 4096


async def test_scaling_above_the_groups_is_a_failed_precondition_that_names_the_field(tmp_path: Path) -> None:
    async with running(InMemoryLauncher(), tmp_path, grouped()) as controller, control(controller) as stub:
        await until(controller, all_ready(3))
        with pytest.raises(grpc.aio.AioRpcError, match=r"cluster\.pools\.decode\.groups") as refused:
            await stub.Scale(control_pb2.ScaleRequest(role=worker_pb2.ROLE_DECODE, num_workers=4))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert controller.fleet.desired["decode"] == 2


async def test_proxies_are_told_the_group(tmp_path: Path) -> None:
    async with running(InMemoryLauncher(), tmp_path, grouped()) as controller:
        snapshot = await until(controller, all_ready(3))
        told = {member.worker: member_message(member).group for member in snapshot.members}
        assert told == {"decode-0": "big", "decode-1": "small", "prefill-0": ""}
