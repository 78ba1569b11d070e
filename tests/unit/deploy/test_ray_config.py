"""Which Ray a cluster is to run on, and what is left of it when it ends."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from _pytest.logging import LogCaptureFixture

from cluster.placements import Node
from deploy.cluster_ports import wanted_ports
from deploy.cluster_state import StateStore
from deploy.commands.join import JoinError, read_labels, read_resources
from deploy.config import DEFAULT_FILE, ConfigError, load
from deploy.controllers_end import wait_for_controllers_end
from deploy.ray_config import start_arguments
from deploy.start_controller import NoSuchHostError, controllers_node
from deploy.tear_down import tear_down
from tests.unit.deploy.test_cluster_state import state

NODES = [Node("first", "10.0.0.1"), Node("second", "10.0.0.2")]


def test_the_controller_starts_on_the_machine_that_has_its_address() -> None:
    assert controllers_node("10.0.0.2", NODES) == "second"
    assert controllers_node("127.0.0.1", NODES) == "first"
    with pytest.raises(NoSuchHostError, match=r"address 10\.0\.0\.3 .*: set one of 10\.0\.0\.1, 10\.0\.0\.2"):
        controllers_node("10.0.0.3", NODES)


def test_an_address_of_ray_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--ray: ray\.address is 'head'"):
        load(DEFAULT_FILE, {"ray.address": "head"}, {"ray.address": "--ray"})


def test_labels_are_for_a_ray_that_is_started_here() -> None:
    with pytest.raises(ConfigError, match="give them to its `ray start`"):
        load(DEFAULT_FILE, {"ray.address": "10.0.0.1:6379", "ray.labels": {"rack": "7"}})


def test_ports_of_another_machine_are_not_looked_for_on_this_one() -> None:
    elsewhere = {"ray.address": "ray://10.0.0.1:10001", "cluster.host": "10.0.0.1", "proxy.insecure": True}
    assert wanted_ports(load(DEFAULT_FILE, elsewhere), with_prometheus=False) == []
    here = load(DEFAULT_FILE, {"ray.address": "ray://127.0.0.1:10001", "cluster.starts_proxy": False})
    assert [want.setting for want in wanted_ports(here, with_prometheus=False)] == ["cluster.controller_port"]


def test_what_a_machine_has_is_told_to_ray() -> None:
    assert start_arguments({"rack": "7", "row": "b"}, {"nic": 2.0}) == [
        "--labels", "rack=7,row=b", "--resources", '{"nic": 2.0}',
    ]  # fmt: skip
    assert start_arguments({}, {}) == []


def test_what_a_joining_machine_has_is_read_and_checked() -> None:
    assert read_labels(["rack=7"]) == {"rack": "7"}
    assert read_resources(["nic=2"]) == {"nic": 2.0}
    with pytest.raises(JoinError, match="--label rack: write it as NAME=VALUE"):
        read_labels(["rack"])
    with pytest.raises(JoinError, match="--resource nic=two: two is no number"):
        read_resources(["nic=two"])


def test_a_cluster_on_another_s_ray_lives_until_it_is_taken_down(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.claim(state())
    with_launcher_gone = {"owns_ray": False, "ray_address": "127.0.0.1:9", "launcher": state().launcher.__class__(1, 0)}
    assert not store.update(state(), **with_launcher_gone).is_alive
    assert store.update(state(), **with_launcher_gone, is_up=True).is_alive


def test_the_end_of_a_controller_that_never_answers_again_is_seen() -> None:
    wait_for_controllers_end(state(), gone_after_s=0.1)


def test_a_ray_that_is_gone_does_not_keep_a_cluster_from_being_taken_down(
    tmp_path: Path, caplog: LogCaptureFixture
) -> None:
    store = StateStore(tmp_path)
    store.claim(state())
    left = store.update(state(), owns_ray=False, ray_address="127.0.0.1:9", folder=str(tmp_path / "folder"))
    tear_down(left, store, Event())
    assert store.find("default") is None
    assert "the Ray at 127.0.0.1:9 is not there any more" in caplog.text
