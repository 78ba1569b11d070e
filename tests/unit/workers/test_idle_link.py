"""A link that nobody uses for long, behind something that forgets idle connections without a word: it stays usable.

Field report D16.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from prometheus_client import CollectorRegistry

from bench.chaos.relay import Relay
from cluster.server_options import SERVER_OPTIONS
from decode_worker.grpc_peer import CHANNEL_OPTIONS, GrpcPeer
from engine.fake_runner import FakeRunner
from kv_transfer.local_peer import LocalPeer
from kv_transfer.metrics import TransferMetrics
from prefill_worker.peer_service import PeerService
from rpc import peer_pb2_grpc
from tests.unit.workers.pair import LABELS, Pair, token_request

KEEPALIVE_MS = 200
ANSWER_MS = 800  # so late may the answer to a keepalive be, on a busy machine
PAUSE_S = 2.0  # of the link: longer than a keepalive and the wait for its answer
QUICKER = {
    "grpc.keepalive_time_ms": KEEPALIVE_MS,
    "grpc.keepalive_timeout_ms": ANSWER_MS,
    "grpc.http2.ping_timeout_ms": ANSWER_MS,
    "grpc.http2.min_ping_interval_without_data_ms": KEEPALIVE_MS // 4,
}


def quicker(options: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The same, in a time that a test can wait for."""
    return [(name, QUICKER.get(name, value)) for name, value in options]


def open_peer(address: str) -> GrpcPeer:
    return GrpcPeer(address, quicker(CHANNEL_OPTIONS))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair(open_peer=open_peer) as pair:
        yield pair


@pytest.fixture
async def port(pair: Pair) -> AsyncIterator[int]:
    """Of a server that takes the pings that a worker's takes."""
    server = grpc.aio.server(options=quicker(SERVER_OPTIONS))
    peer = LocalPeer(pair.p.info, pair.p.leases, pair.p.engine)
    service = PeerService(peer, pair.p.engine.engine.cache.layout, TransferMetrics(CollectorRegistry(), LABELS))
    peer_pb2_grpc.add_PeerServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port
    await server.stop(0)


async def handshake_s(pair: Pair, peer: GrpcPeer) -> float:
    started_at = asyncio.get_running_loop().time()
    async with asyncio.timeout(5):
        await peer.handshake(pair.d.info, pair.p.info.incarnation)
    return asyncio.get_running_loop().time() - started_at


@pytest.fixture
async def relay(port: int) -> AsyncIterator[Relay]:
    relay = Relay("127.0.0.1", port, idle_s=0.6)
    await relay.start()
    yield relay
    await relay.cut()


@pytest.fixture
async def peer(relay: Relay) -> AsyncIterator[GrpcPeer]:
    peer = open_peer(f"127.0.0.1:{relay.port}")
    yield peer
    await peer.disconnect()


async def test_an_idle_connection_is_kept_alive(pair: Pair, relay: Relay, peer: GrpcPeer) -> None:
    await handshake_s(pair, peer)
    await asyncio.sleep(PAUSE_S)
    assert await handshake_s(pair, peer) < 1
    assert relay.num_connections == 1


async def test_a_forgotten_one_is_replaced_before_it_is_needed(pair: Pair, relay: Relay, peer: GrpcPeer) -> None:
    await handshake_s(pair, peer)
    relay.forget_all()
    await asyncio.sleep(PAUSE_S)
    assert await handshake_s(pair, peer) < 1
    assert relay.num_connections == 2


@pytest.mark.parametrize("forgets", [False, True])
async def test_ten_requests_after_a_pause_get_their_text_and_the_first_is_hardly_slower(
    pair: Pair, relay: Relay, forgets: bool
) -> None:
    """Also when the connection between the two was forgotten during the pause."""
    pair.address = f"127.0.0.1:{relay.port}"

    async def ask(n: int) -> float:
        prompt, started_at = [100 + n] * 30, asyncio.get_running_loop().time()
        pair.start(token_request(f"r{n}", prompt))
        assert await pair.to_d.finished(f"r{n}") == FakeRunner.expected(prompt, 6)
        return asyncio.get_running_loop().time() - started_at

    before_s = await ask(0)
    if forgets:
        relay.forget_all()
    await asyncio.sleep(PAUSE_S)
    assert await ask(1) < before_s + 2
    for n in range(2, 11):
        await ask(n)
    assert [event for name, event in pair.to_d.events if name == "handoff_failed"] == []
    assert relay.num_connections > forgets
    await pair.check_idle()
