"""On which machine a worker starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cluster.placements import Node, NoPlaceError, Placements
from cluster.roles import WorkerRole
from cluster.spec import ClusterSpec, ProcessSpec

THREE = [Node("a", "10.0.0.1"), Node("b", "10.0.0.2"), Node("c", "10.0.0.3")]
GPUS = [Node("a", "10.0.0.1", resources={"GPU": 2.0}), Node("b", "10.0.0.2", resources={"GPU": 2.0})]
CUDA = {"engine": {"device": "cuda"}}
NOTHING: Mapping[str, object] = {}


def worker(name: str, pool: Mapping[str, object] = NOTHING, settings: Mapping[str, object] = NOTHING) -> ProcessSpec:
    """As a cluster with these settings starts it; `pool` is of every role."""
    role: WorkerRole = next(role for role in ("prefill", "decode", "mixed") if name.startswith(role))
    pools = {role: {"replicas": 1, **pool} for role in ("prefill", "decode", "mixed")}
    return ClusterSpec.model_validate({"pools": pools, **settings}).process(name, role, name, "/model")


def started(nodes: list[Node], *specs: ProcessSpec) -> list[str]:
    """Where each goes, one after the other, on machines that were empty."""
    placements = Placements()
    places = []
    for spec in specs:
        places.append(placements.choose(spec, nodes).id)
        placements.add(spec, places[-1])
    return places


def test_prefill_and_decode_go_apart() -> None:
    assert started(THREE, worker("prefill-0"), worker("decode-0")) == ["a", "b"]


def test_workers_of_a_role_are_spread_before_machines_are_filled() -> None:
    names = ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"]
    assert started(THREE, *map(worker, names)) == ["a", "b", "c", "a", "b"]


def test_a_worker_that_ended_makes_room() -> None:
    placements = Placements()
    placements.add(worker("decode-0"), "a")
    placements.add(worker("decode-1"), "b")
    placements.forget("decode-0")
    assert placements.choose(worker("decode-2"), [THREE[1], THREE[0]]).id == "a"


def test_a_machine_that_left_gets_nothing() -> None:
    placements = Placements()
    placements.add(worker("decode-0"), "a")
    assert placements.choose(worker("decode-1"), THREE[:1]).id == "a"


def test_workers_start_only_where_the_labels_are_those_of_their_pool() -> None:
    nodes = [THREE[0], Node("b", "10.0.0.2", labels={"rack": "7"}), Node("c", "10.0.0.3", labels={"rack": "8"})]
    pool = {"placement": {"labels": {"rack": "8"}}}
    assert started(nodes, worker("decode-0", pool), worker("decode-1", pool)) == ["c", "c"]


def test_a_resource_that_workers_hold_is_not_given_twice() -> None:
    nodes = [Node("a", "10.0.0.1", resources={"fast_nic": 1.0}), Node("b", "10.0.0.2", resources={"fast_nic": 1.0})]
    pool = {"placement": {"resources": {"fast_nic": 1}}}
    assert started(nodes, worker("decode-0", pool), worker("decode-1", pool)) == ["a", "b"]
    with pytest.raises(NoPlaceError, match="none of 2 machines has 1 free fast_nic, which decode-2 needs"):
        started(nodes, *(worker(f"decode-{n}", pool) for n in range(3)))


def test_a_gpu_worker_takes_a_gpu_of_its_own() -> None:
    with pytest.raises(NoPlaceError, match="1 free GPU"):
        started(GPUS, *(worker(f"decode-{n}", settings=CUDA) for n in range(5)))


def test_gpu_workers_that_could_use_nccl_go_in_pairs() -> None:
    names = ["prefill-0", "prefill-1", "decode-0", "decode-1"]
    assert started(GPUS, *(worker(name, settings=CUDA) for name in names)) == ["a", "b", "a", "b"]
    assert started(GPUS, *(worker(name, settings=CUDA) for name in ["prefill-0", "decode-0"])) == ["a", "a"]


def test_without_nccl_gpu_workers_are_spread() -> None:
    settings = {**CUDA, "kv_transfer": {"transports": ["nixl"]}}
    assert started(GPUS, *(worker(name, settings=settings) for name in ["prefill-0", "decode-0"])) == ["a", "b"]


def test_a_pool_may_ask_for_pairs_itself() -> None:
    pool = {"placement": {"affinity": "pair"}}
    assert started(THREE, *(worker(name, pool) for name in ["prefill-0", "decode-0", "decode-1"])) == ["a", "a", "b"]


def test_what_no_machine_has_is_named_with_the_way_out() -> None:
    pool = {"placement": {"labels": {"rack": "9"}}}
    with pytest.raises(NoPlaceError, match=r"none of 3 machines has rack=9, .*`pdserve join` takes --label"):
        started(THREE, worker("decode-0", pool))


def test_each_group_goes_to_machines_of_its_own() -> None:
    groups = [
        {"name": "large", "most": 1, "placement": {"labels": {"memory": "large"}}},
        {"name": "gpu", "engine": {"device": "cuda"}},
    ]
    cluster = ClusterSpec.model_validate({"pools": {"decode": {"replicas": 2, "groups": groups}}})
    nodes = [Node("a", "10.0.0.1"), Node("b", "10.0.0.2", {"memory": "large"}), Node("c", "10.0.0.3", {}, {"GPU": 1.0})]
    large, gpu = (
        cluster.process(f"decode-{index}", "decode", f"i{index}", "/model", group=group)
        for index, group in enumerate(("large", "gpu"))
    )
    assert started(nodes, large, gpu) == ["b", "c"]
    with pytest.raises(NoPlaceError, match="1 free GPU, which decode-1 needs"):
        started(nodes[:2], gpu)
