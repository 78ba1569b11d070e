"""Bytes that no client would send, on every port of a cluster: no process dies, and the next answer is right."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from tests.integration.processes import Processes
from tests.integration.test_api import check_canary

pytestmark = pytest.mark.integration

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
JUNK = {
    "nothing": b"",
    "zeros": bytes(4096),
    "all bytes": bytes(range(256)) * 64,
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
    "half a request": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "a long header": b"GET / HTTP/1.1\r\nx: " + b"a" * 200_000,
    "a bad chunk": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "a preface and no more": PREFACE,
    "a frame of 16 MiB": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(1024),
    "unknown frames": PREFACE + b"\x00\x00\x08\xfe\xff\x00\x00\x00\x00" * 64,
    "settings out of range": PREFACE + b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + struct.pack(">HI", 5, 2**32 - 1),
    "streams that are reset": PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    + b"".join(b"\x00\x00\x04\x03\x00" + struct.pack(">II", stream, 8) for stream in range(1, 400, 2)),
}  # fmt: skip
NUM_HALF_OPEN = 8  # on each port; more than 5 fill the backlog of a metrics port
SEND_TIMEOUT_S = 10.0


def ports(cluster: Processes) -> dict[str, str]:
    return {
        "HTTP": cluster.http.removeprefix("http://"),
        "gRPC": cluster.grpc,
        "prefill worker": cluster.worker("prefill-0").addresses["grpc"],
        "decode worker": cluster.worker("decode-0").addresses["grpc"],
        "prefill metrics": cluster.worker("prefill-0").addresses["metrics"],
        "decode metrics": cluster.worker("decode-0").addresses["metrics"],
    }


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=SEND_TIMEOUT_S)


@pytest.mark.parametrize("name", JUNK)
def test_junk_on_every_port_harms_nobody(fake_cluster: Processes, name: str) -> None:
    for address in ports(fake_cluster).values():
        with connected(address) as junk, contextlib.suppress(OSError):  # it may be closed while it is sent
            junk.sendall(JUNK[name])
            junk.shutdown(socket.SHUT_WR)
    check_canary(fake_cluster)
    for address in ports(fake_cluster).values():
        connected(address).close()


def test_connections_that_say_nothing_or_half_harm_nobody(fake_cluster: Processes) -> None:
    with contextlib.ExitStack() as opened:
        for address in ports(fake_cluster).values():
            for number in range(NUM_HALF_OPEN):
                silent = opened.enter_context(connected(address))
                if number % 2:
                    silent.sendall(PREFACE[: 1 + number % len(PREFACE)])
        check_canary(fake_cluster)
    check_canary(fake_cluster)
    fake_cluster.wait_idle()
