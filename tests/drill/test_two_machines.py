"""`pdserve up` on one machine and `pdserve join` on another: a worker on each, KV between them, and one that leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.fake_model import write_fake_model
from deploy.inference_client import Generation, text_request
from tests.hosts import Host, Network, network
from tests.integration.processes import wait_until
from tests.integration.test_api import expected_text

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180)]
PDSERVE = str(Path(sys.executable).with_name("pdserve"))
JOIN = re.compile(r"pdserve join (\S+) --token-file FILE, a copy of (\S+)")
PORTS = {"controller": 8002, "grpc": 8001, "http": 8000}  # of the host's own


class Machines:
    """Runs `pdserve` on either host, with state of its own; ends what it started."""

    def __init__(self, net: Network, folder: Path, undo: ExitStack) -> None:
        self.head, self.other = net.hosts
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200"}
        self._undo = undo

    def start(self, host: Host, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            host.command([PDSERVE, *arguments]),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._undo.callback(end, process)
        return process

    def workers(self) -> list[dict[str, Any]]:
        command = self.head.command([PDSERVE, "status", "--json"])
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        workers: list[dict[str, Any]] = json.loads(done.stdout)["workers"]
        return workers

    def places(self) -> dict[str, tuple[str, str]]:
        """Of each worker that is ready: its node, and the host part of its address."""
        ready = [worker for worker in self.workers() if worker["state"] == "ready"]
        return {worker["name"]: (worker["node"], worker["address"].rpartition(":")[0]) for worker in ready}

    def generate(self, prompt: str) -> tuple[str, str]:
        """The text, and the path its KV took."""
        request = text_request(prompt, max_tokens=8, temperature=0.0)
        generation = Generation(f"{self.head.address}:{PORTS['grpc']}", request, 60)
        text = "".join(generation)
        assert generation.finished is not None
        return text, generation.finished.path


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line_with(process: subprocess.Popen[str], pattern: re.Pattern[str]) -> re.Match[str]:
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if found := pattern.search(line):
            return found
    raise AssertionError("it ended without saying so:\n" + "".join(said))


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with network(2) as net, ExitStack() as undo:
        yield Machines(net, tmp_path, undo)


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
    up = machines.start(machines.head, "up", "--model", str(model), "--insecure", *options)
    address, token = line_with(up, JOIN).groups()
    joined = machines.start(machines.other, "join", address, "--token-file", token)
    line_with(joined, re.compile(f"{machines.other.address} is part of the cluster at {address}"))
    line_with(up, re.compile("Ctrl-C ends it"))
    places = machines.places()
    assert set(places) == {"prefill-0", "decode-0"}
    assert set(places.values()) == {(host.name, host.address) for host in (machines.head, machines.other)}
    prompt = "a prompt that is longer than a block of sixteen tokens"
    assert machines.generate(prompt) == (expected_text(prompt, 8), "p2p")
    end(joined)
    here = (machines.head.name, machines.head.address)
    wait_until(lambda: machines.places() == {"prefill-0": here, "decode-0": here}, 60)
    wait_until(lambda: machines.generate(prompt + " again")[1] == "p2p", 20)
    assert machines.generate(prompt)[0] == expected_text(prompt, 8)
