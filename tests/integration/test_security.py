"""A whole cluster behind keys and certificates: it serves whoever has a key, and nobody else gets in anywhere."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel, FakeRunner
from security.certificates import make_certificates
from security.channel_tls import ChannelTls
from security.cluster_tls import INTERNAL_NAME
from security.connection import open_blocking_channel
from security.pinned import pinned_context
from tests.integration.processes import ROOT, Processes, wait_until
from tests.integration.test_cluster import PDSERVE

pytestmark = pytest.mark.integration
MODEL = FakeModel(seconds_per_step=0.001)
TIMEOUT_S = 60.0


def pdserve(*arguments: str) -> str:
    done = subprocess.run([PDSERVE, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Guarded:
    """Its certificates and keys are made by the commands."""

    def __init__(self, folder: Path) -> None:
        pdserve("certs", str(folder / "tls"), "--host", "localhost", "--host", "127.0.0.1")
        make_certificates(folder / "foreign", ["localhost"], days=1)
        self.foreign = folder / "foreign"
        self.keys_file = folder / "keys.json"
        self.key = pdserve("keys", "add", "alice", "--file", str(self.keys_file))
        model = write_fake_model(folder / "model", MODEL)
        self.processes = Processes(model, folder, engine={"num_blocks": 256}, tls=folder / "tls")

    def start(self) -> None:
        self.processes.start_workers()
        self.processes.start_pool_node()
        self.processes.start_proxy(f"--keys-file={self.keys_file}")

    def ask(self, prompt: list[int], key: str, mode: str = "p2p") -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
        headers = {"authorization": f"Bearer {key}", "x-kv-mode": mode}
        trust = pinned_context(self.processes.certificate)
        return httpx.post(
            f"{self.processes.http}/v1/completions", json=body, headers=headers, verify=trust, timeout=TIMEOUT_S
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "model").mkdir()
    guarded = Guarded(folder)
    with guarded.processes:
        guarded.start()
        yield guarded


def prompt(seed: int) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=69)


@pytest.mark.parametrize("mode", ["p2p", "pooled"])
def test_kv_moves_between_workers_that_know_each_other(guarded: Guarded, mode: str) -> None:
    asked = prompt(len(mode))
    answers = [guarded.ask(asked, guarded.key, mode) for _ in range(2)]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == bytes(FakeRunner.expected(asked, 6)).decode()
    assert answers[0].headers["x-path"] == mode


def test_a_key_made_and_revoked_while_it_runs_counts_at_once(guarded: Guarded) -> None:
    file = ("--file", str(guarded.keys_file))
    key = pdserve("keys", "add", "bob", *file)
    wait_until(lambda: guarded.ask([97], key).status_code == 200, TIMEOUT_S)
    pdserve("keys", "revoke", "bob", *file)
    wait_until(lambda: guarded.ask([97], key).status_code == 401, TIMEOUT_S)
    assert "revoked" in pdserve("keys", "list", *file)


def test_the_grpc_example_gets_in_with_a_key_and_the_authority(guarded: Guarded) -> None:
    processes = guarded.processes
    assert processes.tls is not None
    example = [sys.executable, "examples/grpc_generate.py", "hi", "--address", processes.grpc, "--max-tokens", "9"]
    example += ["--ca", str(processes.tls / "ca.crt"), "--key", guarded.key]
    done = subprocess.run(example, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT)
    assert 'decode_worker: "decode-0"' in done.stdout, done.stderr


@pytest.mark.parametrize("who", ["prefill-0", "decode-0", "pool-0", "controller"])
def test_no_port_inside_lets_in_who_has_no_certificate_of_this_cluster(guarded: Guarded, who: str) -> None:
    processes = guarded.processes
    addresses = {node.name: node.addresses["grpc"] for node in (*processes.workers, *processes.pool_nodes)}
    address = ({"controller": processes.controller.address} | addresses)[who]
    assert processes.tls is not None
    authority = (processes.tls / "ca.crt").read_bytes()
    pair = [(guarded.foreign / f"internal.{part}").read_bytes() for part in ("key", "crt")]
    strangers: list[ChannelTls | None] = [
        None,
        ChannelTls(grpc.ssl_channel_credentials(authority), INTERNAL_NAME),
        ChannelTls(grpc.ssl_channel_credentials(authority, *pair), INTERNAL_NAME),
    ]
    for stranger in strangers:
        with open_blocking_channel(address, stranger) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # known to the server it would be UNIMPLEMENTED
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), TIMEOUT_S) as junk:
        junk.sendall(random.Random(1).randbytes(4096))
        while junk.recv(4096):
            continue  # it is let go of
    assert guarded.ask(prompt(5), guarded.key).status_code == 200


def test_no_key_is_in_any_log(guarded: Guarded) -> None:
    for key in (guarded.key, "pdserve-0123456789abcdef-" + "x" * 43):
        guarded.ask([97], key)
    secrets = [guarded.key[-43:], "x" * 43]
    for log in guarded.processes.log_dir.glob("*.log"):
        text = log.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], log
