"""Clients that owe something: a head, a body, reading their answer. Each is cut, its socket is let go, others go on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.unit.proxy.conftest import Cluster, MakeCluster, http_client
from tests.unit.proxy.fake_worker import PATIENCE_S

BODY = json.dumps({"prompt": "x", "stream": True}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"


@asynccontextmanager
async def connection(cluster: Cluster) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = cluster.addresses.http.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


def num_connections(cluster: Cluster) -> int:
    assert cluster.server is not None
    return len(cluster.server._http.server_state.connections)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the other side closed."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def is_healthy(cluster: Cluster) -> bool:
    async with http_client(f"http://{cluster.addresses.http}") as http:
        return (await http.get("/health")).status_code == 200


async def test_a_client_that_sends_nothing_is_cut(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, header_timeout_s=0.05)
    async with connection(cluster) as (reader, _):
        assert await ended(reader) == b""


async def test_a_client_that_sends_its_head_byte_by_byte_is_cut(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, header_timeout_s=0.1)
    async with connection(cluster) as (reader, writer):
        ending = asyncio.create_task(ended(reader))
        while not ending.done():
            writer.write(b"G")
            await asyncio.wait([ending], timeout=0.01)
        assert await ending == b""


async def test_a_second_head_may_take_no_longer_than_the_first(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, header_timeout_s=0.2)
    async with connection(cluster) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /hea")
        assert await ended(reader) == b'{"status":"ok"}'


async def test_a_request_that_waits_for_its_answer_owes_nothing(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, header_timeout_s=0.05, keep_alive_timeout_s=1)
    async with http_client(f"http://{cluster.addresses.http}") as http:
        asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
        _, decode = await cluster.starts()
        await asyncio.wait([asking], timeout=0.2)
        cluster.decode.say(decode, b"a", finish="length")
        assert (await asking).status_code == 200


async def test_an_idle_connection_ends(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, keep_alive_timeout_s=1)
    async with connection(cluster) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await ended(reader)).endswith(b'{"status":"ok"}')


def narrow_socket(address: str) -> socket.socket:
    """Of which little fits in between, so that not reading is felt soon."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    host, port = address.rsplit(":", 1)
    sock.connect((host, int(port)))
    return sock


async def test_a_client_that_never_reads_is_cut_and_its_request_ended(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, write_timeout_s=0.3, max_buffered_tokens=1 << 24)
    with narrow_socket(cluster.addresses.http) as sock:
        sock.sendall(HEAD % len(BODY) + b"\r\n" + BODY)
        _, decode = await cluster.starts()
        aborting = asyncio.create_task(cluster.decode.next_abort())
        index = 0
        while not aborting.done():
            cluster.decode.say(decode, b"a" * 500, index=index)
            index += 500
            await asyncio.wait([aborting], timeout=0.001)
        await aborting
        await cluster.until(lambda: num_connections(cluster) == 0)
    assert cluster.proxy.service.running == []


async def test_connections_over_the_limit_are_told_so_and_closed(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, max_connections=2)
    async with connection(cluster), connection(cluster):
        await cluster.until(lambda: num_connections(cluster) == 2)
        async with connection(cluster) as (reader, _):
            head, _, body = (await ended(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "too_many_connections"
    await cluster.until(lambda: num_connections(cluster) == 0)
    assert await is_healthy(cluster)


async def test_bodies_share_a_bound_and_give_it_back(make_cluster: MakeCluster) -> None:
    """Field report D45."""
    cluster = await make_cluster(fronts=True, max_bodies_bytes=100_000, body_timeout_s=PATIENCE_S)
    half = json.dumps({"prompt": "x" * 60_000}).encode()
    async with connection(cluster) as (_, writer), http_client(f"http://{cluster.addresses.http}") as http:
        writer.write(HEAD % len(half) + b"\r\n" + half[:-1])
        bodies_full = None
        async with asyncio.timeout(PATIENCE_S):
            while bodies_full is None:  # once the first one's bytes have been read
                answer = await http.post("/v1/completions", content=half)
                bodies_full = answer if answer.status_code == 429 else None
        assert bodies_full.json()["error"]["code"] == "bodies_full"
        assert bodies_full.headers["retry-after"] == "1"
        writer.write(half[-1:])
        async with asyncio.timeout(PATIENCE_S):
            while (await http.post("/v1/completions", content=half)).status_code == 429:
                pass


async def test_a_large_chat_is_read_aside_and_reaches_the_workers(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True)
    messages = [{"role": "user", "content": ""}] * 20 + [{"role": "user", "content": "x"}]
    padding = " " * 100_000  # the body is large, the prompt is not
    body = json.dumps({"messages": messages}).encode() + padding.encode()
    async with http_client(f"http://{cluster.addresses.http}") as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", content=body, headers={"x-tenant": "acme"}))
        prefill, decode = await cluster.starts()
        assert prefill.request.cache_salt == "acme "  # who asks is known in the thread, too
        cluster.decode.say(decode, b"a", finish="length")
        assert (await asking).status_code == 200


async def test_a_chat_of_ten_thousand_messages_is_refused_while_health_answers(served: Cluster) -> None:
    """Field report D45."""
    body = {"messages": [{"role": "user", "content": "words " * 20}] * 10_000}
    async with http_client(f"http://{served.addresses.http}") as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        while not asking.done():
            assert await is_healthy(served)
        answer: httpx.Response = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
