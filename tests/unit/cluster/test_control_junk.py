"""Bytes that no client would send to the controller's port: they harm nobody, and the next call is answered."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.autoscale.autoscaler import Autoscaler
from cluster.control_service import ControlServer
from rpc import control_pb2, control_pb2_grpc
from tests.unit.cluster.in_memory_launcher import InMemoryLauncher
from tests.unit.cluster.test_controller import PROXY, all_ready, running, until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
JUNK = (
    b"",
    bytes(4096),
    b"GET / HTTP/1.1\r\n\r\n",
    PREFACE,
    PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(999),
)
METHODS = [
    f"/pdserve.v1.Control/{method.name}" for method in control_pb2.DESCRIPTOR.services_by_name["Control"].methods
]


async def test_junk_and_half_open_connections_harm_nobody(tmp_path: Path) -> None:
    async with running(InMemoryLauncher(), tmp_path) as controller:
        await until(controller, all_ready(2))
        server = ControlServer(controller, Autoscaler(controller))
        port = await server.start("127.0.0.1:0")
        opened = []
        for junk in JUNK:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk)
            opened.append(writer)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = control_pb2_grpc.ControlStub(channel)
            for path in METHODS:
                method: Any = channel.unary_unary(path)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await method(b"\xff\xff\xff\xff", timeout=30)  # no message of protobuf
                assert refused.value.code() is grpc.StatusCode.UNKNOWN
            info = await stub.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=30)
            assert info.proxy_http_address == PROXY.http_address
        for writer in opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await server.stop()
