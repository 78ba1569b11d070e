"""Who gets through to a port inside the cluster: whoever has a certificate of its authority, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from security.channel_tls import ChannelTls
from security.cluster_tls import INTERNAL_NAME, ClusterTls
from security.connection import listen, open_blocking_channel, open_channel
from security.pinned import pinned_channel_tls
from security.server_certificate import server_credentials

DEADLINE_S = 30.0


async def status_of(address: str, tls: ChannelTls | None) -> int:
    async with open_channel(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)).status)


async def serve(tls: grpc.ServerCredentials | None) -> AsyncIterator[str]:
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = listen(server, "127.0.0.1:0", tls)
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@pytest_asyncio.fixture
async def inside(certificates: Path) -> AsyncIterator[str]:
    """A port inside the cluster."""
    async for address in serve(ClusterTls.read(certificates).server):
        yield address


@pytest_asyncio.fixture
async def outside(certificates: Path) -> AsyncIterator[str]:
    """One that clients use."""
    async for address in serve(server_credentials(certificates / "server.crt", certificates / "server.key")):
        yield address


def of_files(folder: Path, name: str | None, authority: Path) -> ChannelTls:
    pair = () if name is None else ((folder / f"{name}.key").read_bytes(), (folder / f"{name}.crt").read_bytes())
    return ChannelTls(grpc.ssl_channel_credentials((authority / "ca.crt").read_bytes(), *pair), INTERNAL_NAME)


async def test_the_clusters_own_get_through(inside: str, certificates: Path) -> None:
    assert await status_of(inside, ClusterTls.read(certificates).channel) == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("who", ["plain", "no certificate", "a client port's certificate", "another authority's"])
async def test_others_get_no_further_than_the_handshake(
    inside: str, certificates: Path, foreign: Path, who: str
) -> None:
    tls = {
        "plain": None,
        "no certificate": of_files(certificates, None, certificates),
        "a client port's certificate": of_files(certificates, "server", certificates),
        "another authority's": of_files(foreign, "internal", certificates),
    }[who]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await status_of(inside, tls)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_of_another_authority_is_not_believed(inside: str, certificates: Path, foreign: Path) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await status_of(inside, of_files(certificates, "internal", foreign))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_commands_believe_the_proxys_own_certificate_and_no_other(
    outside: str, certificates: Path, foreign: Path
) -> None:
    right, wrong = pinned_channel_tls(certificates / "server.crt"), pinned_channel_tls(foreign / "server.crt")
    assert await status_of(outside, right) == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError):
        await status_of(outside, wrong)


async def test_without_certificates_all_is_plain() -> None:
    tls = ClusterTls.read(None)
    async for address in serve(tls.server):
        assert await status_of(address, tls.channel) == health_pb2.HealthCheckResponse.SERVING


async def test_a_port_that_is_taken_is_named(inside: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {inside}"):
        listen(grpc.aio.server(options=[("grpc.so_reuseport", 0)]), inside, None)


def test_a_blocking_channel_is_the_same(certificates: Path) -> None:
    with open_blocking_channel("127.0.0.1:1", ClusterTls.read(certificates).channel) as channel:
        assert isinstance(channel, grpc.Channel)
