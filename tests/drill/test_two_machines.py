"""`pdserve up` on one machine and `pdserve join` on another: a worker on each, KV between them, and one that leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from tests.drill.machines import JOIN, Machines, end, line_with
from tests.hosts import network
from tests.integration.processes import wait_until
from tests.integration.test_api import expected_text

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180)]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with network(2) as net, ExitStack() as undo:
        yield Machines(net, tmp_path, undo)


@pytest.mark.long
def test_a_worker_on_each_of_two_machines_and_both_on_one_when_the_other_leaves(
    machines: Machines, tmp_path: Path
) -> None:
    model = write_fake_model(tmp_path / "model")
    settings = {
        "cluster.host": machines.head.address,
        "cluster.num_nodes": 2,
        "proxy.host": machines.head.address,
        "proxy.local_prefill": "if_needed",
        "cluster.kv_transfer.ucx_tls": "tcp",
        "cluster.engine.num_blocks": 128,
        "cluster.restart.first_delay_s": 0.1,
        "cluster.drain_timeout_s": 1,
    }
    options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
    [other] = machines.others
    up = machines.start(machines.head, "up", "--model", str(model), "--insecure", *options)
    address, token = line_with(up, JOIN).groups()
    joined = machines.start(other, "join", address, "--token-file", token)
    line_with(joined, re.compile(f"{other.address} is part of the cluster at {address}"))
    line_with(up, re.compile("Ctrl-C ends it"))
    places = machines.places()
    assert set(places) == {"prefill-0", "decode-0"}
    assert set(places.values()) == {(host.name, host.address) for host in (machines.head, other)}
    prompt = "a prompt that is longer than a block of sixteen tokens"
    assert machines.generate(prompt) == (expected_text(prompt, 8), "p2p")
    end(joined)
    here = (machines.head.name, machines.head.address)
    wait_until(lambda: machines.places() == {"prefill-0": here, "decode-0": here}, 60)
    wait_until(lambda: machines.generate(prompt + " again")[1] == "p2p", 20)
    assert machines.generate(prompt)[0] == expected_text(prompt, 8)
