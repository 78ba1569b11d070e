"""Head, prefill, decode and proxy on a machine each: one after the other is lost without a word and comes back, while
requests run."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

from bench.fake_model import write_fake_model
from tests.drill.machines import JOIN, PORTS, Machines, line_with
from tests.hosts import Host, Network, network
from tests.integration.processes import wait_until
from tests.integration.test_api import expected_text

pytestmark = [pytest.mark.drill, pytest.mark.long, pytest.mark.timeout(600)]
NUM_CLIENTS = 4
PROMPT = "a prompt that is longer than a block of sixteen tokens"


def lose(net: Network, host: Host) -> None:
    """As when the power goes: nobody there says anything any more."""
    with net.unplugged(host):
        pids = subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True, text=True, check=True)
        for pid in pids.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@contextmanager
def asked_all_the_while(machines: Machines, proxy: Host) -> Iterator[list[str]]:
    """The answers' paths, in the end; every answer must be the right text."""
    over, numbers, paths = Event(), itertools.count(), []

    def ask() -> None:
        while not over.is_set():
            prompt = f"{next(numbers):06d} {PROMPT}"  # not found in a cache, so that it needs the prefill worker
            text, path = machines.generate(prompt, proxy)
            assert text == expected_text(prompt, 8)
            paths.append(path)

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        asking = [pool.submit(ask) for _ in range(NUM_CLIENTS)]
        try:
            yield paths
        finally:
            over.set()
        for asked in asking:
            asked.result()


def test_no_request_fails_while_machines_are_lost_and_come_back(tmp_path: Path) -> None:
    with network(4) as net, ExitStack() as undo:
        machines = Machines(net, tmp_path, undo)
        head, (prefill, decode, proxy) = machines.head, machines.others
        model = write_fake_model(tmp_path / "model")
        settings = {
            "cluster.host": head.address,
            "cluster.num_nodes": 3,
            "cluster.starts_proxy": "false",
            "cluster.pools.prefill.placement.labels.does": "prefill",
            "cluster.pools.decode.placement.labels.does": "decode",
            "cluster.kv_transfer.ucx_tls": "tcp",
            "cluster.engine.num_blocks": 128,
            "cluster.restart.first_delay_s": 0.1,
        }
        options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
        up = machines.start(head, "up", "--model", str(model), "--insecure", *options)
        address, token = line_with(up, JOIN).groups()

        def join(host: Host, role: str) -> None:
            joined = machines.start(host, "join", address, "--token-file", token, "--label", f"does={role}")
            line_with(joined, re.compile("is part of the cluster"))

        def placed() -> dict[str, str]:
            return {worker: node for worker, (node, _) in machines.places().items()}

        join(prefill, "prefill")
        join(decode, "decode")
        line_with(up, re.compile("Ctrl-C ends it"))
        whole = {"prefill-0": prefill.name, "decode-0": decode.name}
        assert placed() == whole
        arguments = [
            "--controller", f"{head.address}:{PORTS['controller']}", "--host", proxy.address, "--insecure",
            "--model-dir", str(model), "--model-name", "model", "--local-prefill", "if_needed",
            "--recovery-timeout-s", "120",
        ]  # fmt: skip
        machines.serve(proxy, [sys.executable, "-m", "proxy", *arguments], tmp_path / "proxy.log")
        wait_until(lambda: machines.answers(PROMPT, proxy) == "p2p", 60)
        with asked_all_the_while(machines, proxy) as paths:
            for host, role in ((prefill, "prefill"), (decode, "decode")):
                lose(net, host)
                wait_until(lambda role=role: f"{role}-0" not in placed(), 120)  # type: ignore[misc]
                join(host, role)
                wait_until(lambda: placed() == whole, 120)
                seen = len(paths)
                wait_until(lambda seen=seen: "p2p" in paths[seen:], 120)  # type: ignore[misc]
        assert len(paths) > 20
