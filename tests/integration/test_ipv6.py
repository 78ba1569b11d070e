"""A whole cluster on ::1: proxy, controller, workers, their peers, a pool and their metrics; and examples as they are.

Field report D42.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel
from tests import plain_http
from tests.hosts import Host
from tests.integration.processes import ROOT, Processes
from tests.integration.test_api import check_canary

pytestmark = pytest.mark.integration
LOOPBACK = Host("loopback", "::1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    folder = write_fake_model(tmp_path_factory.mktemp("model"), FakeModel(seconds_per_step=0.002))
    with Processes(
        folder, tmp_path_factory.mktemp("logs"), engine={"num_blocks": 256}, own_address=LOOPBACK.address
    ) as processes:
        for role in ("prefill", "decode"):
            processes.start_worker(role, host=LOOPBACK)
        processes.start_pool_node(host=LOOPBACK)
        processes.start_proxy(host=LOOPBACK)
        yield processes


def test_kv_is_handed_over_between_workers_on_ipv6(cluster: Processes) -> None:
    check_canary(cluster)
    response = cluster.complete("a prompt that no worker has seen before, long enough for some blocks", 4)
    assert response.headers["x-path"] == "p2p"
    assert all(worker.addresses["grpc"].startswith("[::1]:") for worker in cluster.workers)


def test_kv_goes_through_a_pool_on_ipv6(cluster: Processes) -> None:
    _, finished = cluster.generate(list(range(40, 90)), 4, kv_mode="pooled")
    assert finished.path == "pooled"
    (node,) = cluster.pool_nodes
    assert node.addresses["grpc"].startswith("[::1]:")


def test_every_address_is_told_with_brackets_and_answers(cluster: Processes) -> None:
    targets = [target["targets"][0] for target in plain_http.get(f"{cluster.http}/prometheus/targets").json()]
    assert len(targets) == 4
    for target in targets:
        assert target.startswith("[::1]:")
        assert plain_http.get(f"http://{target}/metrics", timeout=30).status_code == 200


def test_clients_reach_both_ports(cluster: Processes) -> None:
    commands = [
        [sys.executable, "examples/grpc_generate.py", "hi", "--address", cluster.grpc, "--max-tokens", "9"],
        [shutil.which("curl") or "curl", "-gsSf", f"{cluster.http}/v1/models"],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, done.stderr
