"""The whole hand-off between two processes: a real lease table, gRPC and a transport on both sides, a fake model."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

import grpc
import pytest
import torch
from prometheus_client import CollectorRegistry

from decode_worker.grpc_peer import GrpcPeer
from engine.engine import Engine
from engine.engine_thread import EngineThread
from engine.fake_runner import FakeModel, FakeRunner
from engine.kv_cache import KVCache
from engine.request import Request, RequestKind, SamplingParams
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import Handoff, HandoffResult
from kv_transfer.lease import LeaseCounts, LeaseTable
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import (
    BlockRef,
    ChunkReady,
    Compatibility,
    FailureReason,
    HandoffError,
    PeerInfo,
    PrefillDone,
    SessionEvent,
    Ticket,
    TransportInfo,
    Verdict,
)
from kv_transfer.metrics import TransferMetrics
from kv_transfer.peer_link import PeerLink
from kv_transfer.staging import StagingRing
from kv_transfer.transports import build_transports
from kv_transfer.two_sided import TwoSidedTransport
from prefill_worker.peer_service import PeerService
from rpc import peer_pb2_grpc
from tests.engine_config import engine_config
from tests.integration.child import Child

pytestmark = pytest.mark.integration
Path = Mapping[str, object]  # fields of the configuration that choose it
SHARED_MEMORY: Path = {"transports": ["nixl"]}
TCP: Path = {"transports": ["nixl"], "ucx_tls": "tcp"}
GLOO: Path = {"transports": ["gloo"]}
over_all = pytest.mark.parametrize("path", [SHARED_MEMORY, TCP, GLOO], ids=["shared_memory", "tcp", "gloo"])
MODEL = FakeModel(num_layers=8, num_kv_heads=2, head_dim=64)
NUM_BLOCKS = 24
BLOCK_SIZE = 16
PROMPT = list(range(150))  # nine blocks and a bit
EXPECTED = FakeRunner.expected(PROMPT, 3)
SESSION = bytes(range(16))


class Side:
    """One worker without its request plane."""

    def __init__(self, incarnation: str, config: TransferConfig, model: FakeModel = MODEL) -> None:
        config_of_engine = engine_config(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, prefill_chunk_size=32)
        layout = model.layout(BLOCK_SIZE)
        cache = KVCache(layout, NUM_BLOCKS)
        self.config = config
        self.engine = Engine(config_of_engine, model.info(), FakeRunner(cache, model), cache)
        self.thread = EngineThread(self.engine, tick_s=0.01)
        self.ring = StagingRing(config, layout.block_bytes, "cpu", lambda _: None)
        (self.transport,) = build_transports(incarnation, cache, self.ring, config, "127.0.0.1", print).values()
        compatibility = Compatibility(
            1,
            self.engine.model.fingerprint,
            layout.dtype,
            layout.block_size,
            layout.num_layers,
            layout.num_kv_heads,
            layout.head_dim,
        )
        transports = (TransportInfo(self.transport.name, self.transport.metadata()),)
        self.info = PeerInfo(incarnation, compatibility, transports)
        self.thread.start()


class Prefiller(Side):
    """Served in a child."""

    def __init__(self, incarnation: str, config: TransferConfig, model: FakeModel = MODEL) -> None:
        super().__init__(incarnation, config, model)
        self.leases = LeaseTable(self.engine, config, self.transport.keep_awake)
        two_sided = {"gloo": self.transport} if isinstance(self.transport, TwoSidedTransport) else {}
        self.peer = LocalPeer(self.info, self.leases, self.thread, two_sided=two_sided)
        self.server = grpc.aio.server()
        metrics = TransferMetrics(CollectorRegistry(), {"worker": incarnation})
        service = PeerService(self.peer, self.engine.cache.layout, metrics)
        peer_pb2_grpc.add_PeerServicer_to_server(service, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    @classmethod
    async def start(cls, incarnation: str, config: TransferConfig, model: FakeModel = MODEL) -> Prefiller:
        prefiller = cls(incarnation, config, model)
        await prefiller.server.start()
        return prefiller

    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def prefill(self, prompt: list[int], attempt: int = 1) -> None:
        request = make_request(f"p{attempt}", prompt, RequestKind.PREFILL)
        ticket = Ticket(SESSION, attempt)
        await asyncio.wrap_future(self.thread.call(lambda _: self.leases.prefill(request, ticket, time.monotonic())))

    async def compute(self, prompt: list[int]) -> None:
        """Other work, to its end."""
        request = make_request(os.urandom(4).hex(), prompt, RequestKind.GENERATE)
        await asyncio.wrap_future(self.thread.call(lambda engine: engine.add(request)))
        while request.request_id in self.engine.requests:
            await asyncio.wrap_future(self.thread.call(lambda _: None))

    def counts(self) -> LeaseCounts:
        return self.leases.counts()


class Decoder(Side):
    """In the test's own process and loop."""

    async def reserve(self, prompt: list[int]) -> Request:
        request = make_request(os.urandom(4).hex(), prompt, RequestKind.GENERATE, awaits_kv=True)
        await self._in_engine(lambda engine: engine.add(request))
        await until(lambda: bool(request.blocks))
        return request

    def link(self, peer: GrpcPeer, incarnation: str) -> PeerLink:
        return PeerLink(peer, incarnation, self.info, {self.transport.name: self.transport}, self.config)

    async def hand_off(self, link: PeerLink, request: Request, attempt: int = 1) -> HandoffResult:
        handoff = Handoff(request, Ticket(SESSION, attempt), link, self.thread, self.ring, self.config)
        return await handoff.run(asyncio.get_running_loop().time() + 8.0)

    async def finish(self, request: Request, result: HandoffResult) -> list[int]:
        await self._in_engine(lambda engine: engine.accept(request.request_id, result.first_token))
        await until(lambda: request.request_id not in self.engine.requests)
        return request.token_ids[len(PROMPT) :]

    async def drop(self, request: Request) -> None:
        await self._in_engine(lambda engine: engine.abort(request.request_id))

    async def stop(self) -> None:
        await asyncio.to_thread(self.thread.stop)
        await asyncio.to_thread(self.transport.close, 1.0)

    async def _in_engine(self, command: Callable[[Engine], object]) -> None:
        await asyncio.wrap_future(self.thread.call(command))


class FaultyPeer(GrpcPeer):
    """Has something happen to the process on the other side at a moment that a test chooses."""

    def __init__(self, address: str, before_event: int | None, before_commit: bool, fault: Callable[[], None]) -> None:
        super().__init__(address)
        self._before_event = before_event
        self._before_commit = before_commit
        self._fault = fault

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        num_events = 0
        async for event in super().open(ticket, have_tokens):
            if num_events == self._before_event:
                await asyncio.to_thread(self._fault)
            num_events += 1
            yield event

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        if self._before_commit:
            await asyncio.to_thread(self._fault)
        return await super().commit(ticket, blocks, transport)


def make_request(request_id: str, prompt: list[int], kind: RequestKind, *, awaits_kv: bool = False) -> Request:
    return Request(request_id, list(prompt), len(prompt), SamplingParams(max_tokens=3), kind, awaits_kv=awaits_kv)


def other_prompt(num_tokens: int) -> list[int]:
    """No block of it begins as one of PROMPT does."""
    return [(token + 137) % 256 for token in range(num_tokens)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110  no event crosses processes
            await asyncio.sleep(0.005)


def quick(path: Path, **fields: float) -> TransferConfig:
    """Slots of four blocks; deadlines that a test can wait for."""
    block_bytes = MODEL.layout(BLOCK_SIZE).block_bytes
    deadlines = {"transfer_timeout_s": 0.4, "verdict_timeout_s": 0.6, "silent_peer_s": 1.0, "renew_every_s": 0.2}
    return TransferConfig.model_validate(
        {"staging_slot_bytes": 4 * block_bytes, "lease_s": 1.0, "open_timeout_s": 1.0, **path, **deadlines, **fields}
    )


@pytest.fixture
async def new_decoder() -> AsyncIterator[Callable[[TransferConfig], Decoder]]:
    decoders: list[Decoder] = []

    def make(config: TransferConfig) -> Decoder:
        decoders.append(Decoder("D", config))
        return decoders[-1]

    yield make
    for decoder in decoders:
        await decoder.stop()


NewDecoder = Callable[[TransferConfig], Decoder]


@over_all
async def test_the_tokens_are_those_of_a_single_worker(path: Path, new_decoder: NewDecoder) -> None:
    config = quick(path)
    decoder = new_decoder(config)
    with Child(Prefiller.start, "P", config) as prefiller:
        link = decoder.link(GrpcPeer(prefiller.call("address")), "P")
        for attempt in (1, 2):
            prefiller.call("prefill", PROMPT, attempt)
            request = await decoder.reserve(PROMPT)
            result = await decoder.hand_off(link, request, attempt)
            assert await decoder.finish(request, result) == EXPECTED
            assert result.received_tokens == (150 if attempt == 1 else 150 % BLOCK_SIZE)
        counts = prefiller.call("counts")
        assert (counts.active, counts.num_stale) == (0, 0)
        assert decoder.ring.counts().free == config.staging_slots


async def test_reading_overlaps_with_prefill(new_decoder: NewDecoder) -> None:
    config = quick(TCP)
    decoder = new_decoder(config)
    slow = FakeModel(MODEL.num_layers, MODEL.num_kv_heads, MODEL.head_dim, seconds_per_step=0.05)
    with Child(Prefiller.start, "P", config, slow) as prefiller:
        link = decoder.link(GrpcPeer(prefiller.call("address")), "P")
        prefiller.call("prefill", PROMPT)
        result = await decoder.hand_off(link, await decoder.reserve(PROMPT))
        assert result.overlap_ratio is not None
        assert result.overlap_ratio > 0


@over_all
async def test_blocks_that_were_reused_before_they_were_read_are_stale(path: Path, new_decoder: NewDecoder) -> None:
    """The read itself ends well, with other bytes: only the owner of the source can tell."""
    config = quick(path)
    decoder = new_decoder(config)
    with Child(Prefiller.start, "P", config) as prefiller:
        peer = GrpcPeer(prefiller.call("address"))
        transport = await decoder.link(peer, "P").connect()
        prefiller.call("prefill", PROMPT)
        chunks = []
        async for event in peer.open(Ticket(SESSION, 1), 0):
            chunks.append(event.tail if isinstance(event, PrefillDone) else event)
        refs = list(dict.fromkeys(ref for c in chunks if isinstance(c, ChunkReady) for ref in c.blocks))
        wanted = await read_first_tokens(decoder, refs[:4])
        await until(lambda: prefiller.call("counts").num_expired == 1)
        prefiller.call("compute", other_prompt(BLOCK_SIZE * (NUM_BLOCKS - 2)))
        assert await read_first_tokens(decoder, refs[:4]) != wanted
        assert await peer.commit(Ticket(SESSION, 1), refs) is Verdict.STALE
        assert transport is decoder.transport


class TestAStoppedPrefillWorker:
    @pytest.mark.parametrize("path", [TCP, GLOO], ids=["tcp", "gloo"])
    async def test_ends_the_handoff_in_time_and_its_late_bytes_change_nothing(
        self, path: Path, new_decoder: NewDecoder
    ) -> None:
        config = quick(path)
        decoder = new_decoder(config)
        with Child(Prefiller.start, "P", config) as prefiller:
            address = prefiller.call("address")
            link = decoder.link(FaultyPeer(address, 1, False, prefiller.stop), "P")
            prefiller.call("prefill", PROMPT)
            request = await decoder.reserve(PROMPT)
            reasons = {FailureReason.TRANSFER_TIMEOUT, FailureReason.TRANSFER_FAILED}
            await check_fails(decoder, link, request, reasons, within_s=2.0)
            if path is GLOO:  # its communicator is aborted, so nothing stays in doubt
                await until(lambda: decoder.ring.counts().free == config.staging_slots)
                slots = decoder.ring.memory.clone()
            else:
                assert decoder.ring.counts().quarantined > 0
            await decoder.drop(request)
            other = await decoder.reserve(other_prompt(300))  # takes the blocks that the bytes were for
            before = decoder.engine.cache.tensor.clone()
            prefiller.resume()
            await until(lambda: decoder.ring.counts().free == config.staging_slots)
            assert decoder.engine.cache.tensor.equal(before)
            await decoder.drop(other)
            if path is GLOO:
                assert decoder.ring.memory.equal(slots)
            prefiller.call("prefill", PROMPT, 2)
            request = await decoder.reserve(PROMPT)
            result = await decoder.hand_off(decoder.link(GrpcPeer(address), "P"), request, 2)
            assert await decoder.finish(request, result) == EXPECTED

    async def test_that_gives_no_verdict_ends_the_handoff_in_time(self, new_decoder: NewDecoder) -> None:
        config = quick(SHARED_MEMORY)
        decoder = new_decoder(config)
        with Child(Prefiller.start, "P", config) as prefiller:
            link = decoder.link(FaultyPeer(prefiller.call("address"), None, True, prefiller.stop), "P")
            prefiller.call("prefill", PROMPT)
            request = await decoder.reserve(PROMPT)
            await check_fails(decoder, link, request, {FailureReason.VERDICT_TIMEOUT}, within_s=2.0)
            prefiller.resume()
            await until(lambda: prefiller.call("counts").active == 0)


@over_all
async def test_a_killed_prefill_worker_ends_the_handoff_and_its_successor_is_usable(
    path: Path, new_decoder: NewDecoder
) -> None:
    config = quick(path)
    decoder = new_decoder(config)
    with Child(Prefiller.start, "P1", config) as prefiller:
        link = decoder.link(FaultyPeer(prefiller.call("address"), 1, False, prefiller.kill), "P1")
        prefiller.call("prefill", PROMPT)
        request = await decoder.reserve(PROMPT)
        reasons = {FailureReason.TRANSFER_FAILED, FailureReason.PEER_SILENT}
        await check_fails(decoder, link, request, reasons, within_s=2.0)
        await decoder.drop(request)
    await link.close()
    await until(lambda: decoder.ring.counts().free == config.staging_slots)
    with Child(Prefiller.start, "P2", config) as prefiller:
        link = decoder.link(GrpcPeer(prefiller.call("address")), "P2")
        prefiller.call("prefill", PROMPT)
        request = await decoder.reserve(PROMPT)
        assert await decoder.finish(request, await decoder.hand_off(link, request)) == EXPECTED


async def check_fails(
    decoder: Decoder, link: PeerLink, request: Request, reasons: set[FailureReason], within_s: float
) -> None:
    started_at = time.monotonic()
    with pytest.raises(HandoffError) as caught:
        await decoder.hand_off(link, request)
    assert caught.value.reason in reasons, caught.value
    assert time.monotonic() - started_at < within_s


async def read_first_tokens(decoder: Decoder, refs: Sequence[BlockRef]) -> list[float]:
    """What the peer's blocks say now, read as a hand-off would."""
    slot = await decoder.ring.acquire(1.0)
    await asyncio.wrap_future(decoder.transport.read("P", [ref.block for ref in refs], slot))
    rows = slot.memory[: len(refs) * decoder.ring.block_bytes].view(len(refs), -1).view(torch.float32)
    tokens: list[float] = rows[:, 0].tolist()
    decoder.ring.release(slot)
    return tokens
