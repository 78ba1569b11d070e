"""On which machine a worker starts, and where it listens."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cluster.nodes import Placements, listening_address
from cluster.spec import ClusterSpec, RoleName


def started(*roles: RoleName) -> list[str]:
    """Where each goes on three empty machines, one after the other."""
    placements = Placements()
    nodes = []
    for n, role in enumerate(roles):
        nodes.append(placements.choose(role, ["a", "b", "c"]))
        placements.add(f"{role}-{n}", role, nodes[-1])
    return nodes


def test_prefill_and_decode_go_apart() -> None:
    assert started("prefill", "decode") == ["a", "b"]


def test_workers_of_a_role_are_spread_before_machines_are_filled() -> None:
    assert started("prefill", "prefill", "decode", "decode", "decode") == ["a", "b", "c", "a", "b"]


def test_a_worker_that_ended_makes_room() -> None:
    placements = Placements()
    placements.add("x", "decode", "a")
    placements.add("y", "decode", "b")
    placements.forget("x")
    assert placements.choose("decode", ["b", "a"]) == "a"


def test_a_machine_that_left_gets_nothing() -> None:
    placements = Placements()
    placements.add("x", "decode", "a")
    assert placements.choose("decode", ["a"]) == "a"


def test_a_cluster_on_loopback_listens_nowhere_else() -> None:
    assert [listening_address(host) for host in ("127.0.0.1", "::1", "localhost")] == ["127.0.0.1", "::1", "localhost"]


def test_several_machines_need_an_address_that_the_others_can_reach() -> None:
    with pytest.raises(ValidationError, match="no other machine can reach: set host to this machine's own address"):
        ClusterSpec.model_validate({"num_nodes": 2, "pools": {"mixed": {"replicas": 1}}})
