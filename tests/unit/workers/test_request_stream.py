from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from cluster.cache_reporter import CacheReporter
from cluster.request_stream import Identity, LoadReporter, RequestStream, StreamServer
from engine.block_hash import HashContext
from engine.block_pool import CacheChange
from rpc import worker_pb2, worker_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION


class EchoService:
    """Answers each start with one token, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.ended = asyncio.Event()

    def start(self, command: worker_pb2.StartDecode, stream: RequestStream) -> None:
        tokens = worker_pb2.RequestTokens(request_id=command.request.request_id, ids=[7])
        stream.send(tokens=worker_pb2.StepTokens(requests=[tokens]))

    def abort(self, request_id: str, attempt: int, stream: RequestStream) -> None:
        self.told.append((request_id, attempt))

    def end_stream(self, stream: RequestStream) -> None:
        self.ended.set()


class Rig:
    def __init__(self, service: EchoService, caches: CacheReporter, stub: worker_pb2_grpc.DecodeStub) -> None:
        self.service = service
        self.caches = caches
        self.stub = stub


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    service = EchoService()
    identity = Identity("w-1", worker_pb2.ROLE_DECODE, 3, 4096, HashContext("model", "float32", 16))
    loads = LoadReporter(lambda: worker_pb2.Load(num_running=2, admitting=True))
    caches = CacheReporter()
    server = grpc.aio.server()
    worker_pb2_grpc.add_DecodeServicer_to_server(
        StreamServer(service, worker_pb2.DecodeEvent, lambda: identity, loads, caches, silent_proxy_s=0.3), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Rig(service, caches, worker_pb2_grpc.DecodeStub(channel))
    await server.stop(0)


def hello(version: int = PROTOCOL_VERSION, incarnation: str = "w-1") -> worker_pb2.DecodeCommand:
    return worker_pb2.DecodeCommand(
        hello=worker_pb2.Hello(protocol_version=version, proxy_incarnation="x", worker_incarnation=incarnation)
    )


async def test_a_stream_greets_reports_its_load_and_carries_requests(rig: Rig) -> None:
    call = rig.stub.Session()
    await call.write(hello())
    welcome = (await call.read()).welcome
    assert (welcome.worker_incarnation, welcome.role_epoch) == ("w-1", 3)
    assert (await call.read()).load.num_running == 2
    start = worker_pb2.StartDecode(request=worker_pb2.TokenRequest(request_id="r"))
    await call.write(worker_pb2.DecodeCommand(start=start))
    event = await call.read()
    while not event.HasField("tokens"):
        event = await call.read()
    assert event.tokens.requests[0].request_id == "r"
    abort = worker_pb2.AbortRequestCommand(request_id="r", attempt=2)
    await call.write(worker_pb2.DecodeCommand(abort=abort))
    await call.done_writing()
    await asyncio.wait_for(rig.service.ended.wait(), 5)
    assert rig.service.told == [("r", 2)]


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (hello(version=99), "protocol_version 99"),
        (hello(incarnation="w-0"), "worker_incarnation w-0 is gone"),
        (worker_pb2.DecodeCommand(ping=worker_pb2.Ping()), "hello"),
    ],
)
async def test_a_stranger_is_refused_by_name(rig: Rig, first: worker_pb2.DecodeCommand, named: str) -> None:
    call = rig.stub.Session()
    await call.write(first)
    with pytest.raises(grpc.aio.AioRpcError, match=named):
        await call.read()


async def test_a_proxy_that_goes_away_or_falls_silent_ends_its_requests(rig: Rig) -> None:
    gone = rig.stub.Session()
    await gone.write(hello())
    await gone.read()
    gone.cancel()
    await asyncio.wait_for(rig.service.ended.wait(), 5)
    rig.service.ended.clear()
    silent = rig.stub.Session()
    await silent.write(hello())
    await silent.read()
    await asyncio.wait_for(rig.service.ended.wait(), 5)


async def next_cache_update(call: Any) -> worker_pb2.CacheUpdate:
    async with asyncio.timeout(10):
        while not (event := await call.read()).HasField("cache"):
            pass
    update: worker_pb2.CacheUpdate = event.cache
    return update


async def test_who_asks_is_told_what_the_cache_holds_and_then_its_changes(rig: Rig) -> None:
    rig.caches.append([CacheChange(1, b"a" * 16, is_stored=True), CacheChange(2, b"b" * 16, is_stored=True)])
    call = rig.stub.Session()
    await call.write(hello())
    await call.write(worker_pb2.DecodeCommand(watch_cache=worker_pb2.WatchCache()))
    update = await next_cache_update(call)
    assert (update.after, update.through, update.stored) == (0, 2, b"a" * 16 + b"b" * 16)
    rig.caches.append([CacheChange(3, b"a" * 16, is_stored=False)])
    update = await next_cache_update(call)
    assert (update.after, update.through, update.evicted) == (2, 3, b"a" * 16)
    await call.write(worker_pb2.DecodeCommand(watch_cache=worker_pb2.WatchCache(after=1)))
    update = await next_cache_update(call)
    assert (update.after, update.through) == (1, 3)


async def test_who_does_not_ask_hears_nothing_of_the_cache(rig: Rig) -> None:
    call = rig.stub.Session()
    await call.write(hello())
    welcome = (await call.read()).welcome
    assert (welcome.model_fingerprint, welcome.kv_dtype, welcome.block_size) == ("model", "float32", 16)
    rig.caches.append([CacheChange(1, b"a" * 16, is_stored=True)])
    start = worker_pb2.StartDecode(request=worker_pb2.TokenRequest(request_id="r"))
    await call.write(worker_pb2.DecodeCommand(start=start))
    kinds = set()
    while "tokens" not in kinds:
        kinds.add((await call.read()).WhichOneof("event"))
    assert "cache" not in kinds
