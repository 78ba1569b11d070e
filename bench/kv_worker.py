"""A worker as far as the KV plane goes: an engine, its transports and its peer service, without a request plane.

Prefills prompts for others, takes over theirs, or only reads their blocks; says when, on the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry

from bench.kv_pool import PoolShelf
from bench.process_memory import read_memory
from cluster.grpc_pool import GrpcPoolNode
from decode_worker.grpc_peer import GrpcPeer
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine, StepResult
from engine.engine_thread import EngineThread
from engine.request import Request, RequestKind, SamplingParams
from kv_transfer.block_part import WHOLE
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import Handoff
from kv_transfer.lease import LeaseTable
from kv_transfer.local import LocalNetwork, LocalTransport
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import Compatibility, PeerInfo, Ticket, TransportInfo
from kv_transfer.metrics import TransferMetrics
from kv_transfer.peer_link import PeerLink
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_reader import PoolReader
from kv_transfer.pool_ring import PoolMember
from kv_transfer.staging import Slot, StagingRing
from kv_transfer.transport import Transport
from kv_transfer.transports import build_transports
from kv_transfer.two_sided import TwoSidedTransport
from prefill_worker.peer_service import PeerService
from rpc import peer_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION

HOST = "127.0.0.1"
DEADLINE_S = 240.0
READ_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class PrefillTimes:
    started_at: float
    ended_at: float  # the first token is sampled


@dataclass(frozen=True, slots=True)
class PooledRead:
    """One prompt from the pool: its blocks, read and copied, and with the lookup before and the commit after."""

    transfer_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Received:
    """One prompt that was taken over."""

    valid_at: float
    num_bytes: int
    transfer_s: float  # from the first read to the last byte
    overlap_ratio: float
    num_reads: int


class KVWorker:
    """Maintains one peer that it reads from, once it is connected."""

    def __init__(self, incarnation: str, engine: Engine, config: TransferConfig) -> None:
        self._config = config
        self._engine = engine
        self._thread = EngineThread(engine)
        layout = engine.cache.layout
        self._ring = StagingRing(config, layout.block_bytes, "cpu", print)
        self._transports = build_transports(incarnation, engine.cache, self._ring, config, HOST, print)
        self._info = PeerInfo(
            incarnation,
            Compatibility(
                PROTOCOL_VERSION, engine.model.fingerprint, layout.dtype, layout.block_size, layout.num_layers,
                layout.num_kv_heads, layout.head_dim,
            ),
            tuple(TransportInfo(name, transport.metadata()) for name, transport in self._transports.items()),
        )  # fmt: skip
        self._leases = LeaseTable(engine, config, self.keep_awake)
        two_sided = {name: t for name, t in self._transports.items() if isinstance(t, TwoSidedTransport)}
        self._peer = LocalPeer(self._info, self._leases, self._thread, two_sided=two_sided)
        self._server = grpc.aio.server()
        service = PeerService(self._peer, layout, TransferMetrics(CollectorRegistry(), {"worker": incarnation}))
        peer_pb2_grpc.add_PeerServicer_to_server(service, self._server)
        self._port = self._server.add_insecure_port(f"{HOST}:0")
        nodes = PoolNodes(self._info, lambda node: GrpcPoolNode(node.address), self._transports, config)
        self._pool_reader = PoolReader(nodes, self._thread, self._ring, config)
        self._link: PeerLink | None = None
        self._peer_incarnation = ""
        self._reads_with: Transport | None = None
        self._steps: dict[str, Future[StepResult]] = {}  # that are waited for, by request
        self._thread.subscribe(self._on_step)

    @classmethod
    async def start(cls, incarnation: str, folder: Path, engine: EngineConfig, config: TransferConfig) -> KVWorker:
        """All pages of its memory are there, so that no measurement pays for them."""
        worker = cls(incarnation, build_engine(folder, engine), config)
        worker._engine.cache.as_bytes().fill_(1)
        worker._ring.memory.fill_(1)
        worker._thread.start()
        await worker._server.start()
        return worker

    def address(self) -> str:
        return f"{HOST}:{self._port}"

    def keep_awake(self, awake: bool) -> None:
        for transport in self._transports.values():
            transport.keep_awake(awake)

    async def connect(self, incarnation: str, address: str, transport: str) -> None:
        """`local` reads this worker's own cache."""
        if transport == "local":
            local = LocalTransport(incarnation, self._engine.cache, LocalNetwork())
            await asyncio.wrap_future(local.connect(incarnation, local.metadata()))
            self._reads_with, self._peer_incarnation = local, incarnation
            return
        self._link = PeerLink(GrpcPeer(address), incarnation, self._info, self._transports, self._config)
        self._reads_with, self._peer_incarnation = await self._link.connect(transport), incarnation

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        for transport in self._transports.values():
            transport.close()
        await asyncio.to_thread(self._thread.stop)
        await self._server.stop(None)

    async def pull(self, num_blocks: int, copies: bool) -> float:
        """Seconds to read so many blocks, as many at a time as in a hand-off; `copies`: into the cache too."""
        assert self._reads_with is not None
        slots = [await self._ring.acquire(1.0) for _ in range(self._config.reads_in_flight)]
        try:
            return await asyncio.to_thread(self._pull, self._reads_with, num_blocks, slots, copies)
        finally:
            for slot in slots:
                self._ring.release(slot)

    def _pull(self, transport: Transport, num_blocks: int, slots: Sequence[Slot], copies: bool) -> float:
        size = self._ring.blocks_in_slot(WHOLE)
        pieces = [range(i, min(i + size, num_blocks)) for i in range(0, num_blocks, size)]
        reads: deque[tuple[Future[None], Slot, range]] = deque()
        started_at = time.perf_counter()
        for i, piece in enumerate(pieces):
            if len(reads) == len(slots):
                self._end(*reads.popleft(), copies)
            slot = slots[i % len(slots)]
            reads.append((transport.read(self._peer_incarnation, piece, slot), slot, piece))
        while reads:
            self._end(*reads.popleft(), copies)
        return time.perf_counter() - started_at

    def _end(self, read: Future[None], slot: Slot, blocks: range, copies: bool) -> None:
        read.result(READ_TIMEOUT_S)
        if copies:
            payload = slot.memory[: len(blocks) * self._ring.block_bytes].view(len(blocks), -1)
            self._engine.cache.write_blocks(blocks, payload)

    def copy(self, num_blocks: int) -> float:
        """Seconds of plain memcpy of as many bytes between two places of this process's memory."""
        rows = self._engine.cache.as_bytes()
        half = len(rows) // 2
        started_at = time.perf_counter()
        for done in range(0, num_blocks, half):
            n = min(half, num_blocks - done)
            rows[half : half + n].copy_(rows[:n])
        return time.perf_counter() - started_at

    def memory(self) -> tuple[int, int]:
        """(process, address) of the blocks."""
        return os.getpid(), self._engine.cache.as_bytes().data_ptr()

    def read_memory(self, pid: int, address: int, num_blocks: int) -> float:
        """Seconds that the kernel takes to copy that many blocks from there into one slot, slot by slot. OSError."""
        slot_bytes, num_bytes = self._ring.memory.shape[1], num_blocks * self._ring.block_bytes
        started_at = time.perf_counter()
        for done in range(0, num_bytes, slot_bytes):
            read_memory(pid, address + done, self._ring.memory.data_ptr(), min(slot_bytes, num_bytes - done))
        return time.perf_counter() - started_at

    async def read_pooled(self, member: PoolMember, num_blocks: int) -> PooledRead | list[bytes]:
        """A prompt of so many blocks and a token from the pool; the keys it wants, when they are not there."""
        num_tokens = num_blocks * self._engine.config.block_size + 1
        request = _request([0] * num_tokens, RequestKind.GENERATE, awaits_kv=True)
        reserved = self._next_step(request)
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.add(request)))
        await reserved
        started_at = time.perf_counter()
        read = await self._pool_reader.read(request, (member,))
        total_s = time.perf_counter() - started_at
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.abort(request.request_id)))
        if read.num_received < request.num_tokens - 1:
            return request.block_hashes[:num_blocks]
        return PooledRead(read.transfer_s, total_s)

    async def prefill(self, prompt: Sequence[int], session: bytes) -> PrefillTimes:
        request = _request(prompt, RequestKind.PREFILL)
        sampled = self._next_step(request)
        ticket = Ticket(session, 1)
        started_at = time.monotonic()
        await asyncio.wrap_future(self._thread.call(lambda _: self._leases.prefill(request, ticket, started_at)))
        ended = await sampled
        return PrefillTimes(started_at, ended.started_at + ended.duration_s)

    async def take_over(self, prompt: Sequence[int], session: bytes) -> Received:
        """Begins before the peer's prefill has ended, at best before it began."""
        request = _request(prompt, RequestKind.GENERATE, awaits_kv=True)
        reserved = self._next_step(request)
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.add(request)))
        await reserved
        assert self._link is not None
        handoff = Handoff(request, Ticket(session, 1), self._link, self._thread, self._ring, self._config)
        result = await handoff.run(asyncio.get_running_loop().time() + DEADLINE_S)
        valid_at = time.monotonic()
        await asyncio.wrap_future(self._thread.call(lambda engine: engine.abort(request.request_id)))
        return Received(
            valid_at, result.received_bytes, result.transfer_s, result.overlap_ratio or 0.0, len(result.reads)
        )

    def _next_step(self, request: Request) -> Awaitable[StepResult]:
        """The next one that samples the request's token, or has reserved its blocks."""
        step = self._steps[request.request_id] = Future()
        return asyncio.wait_for(asyncio.wrap_future(step), DEADLINE_S)

    def _on_step(self, result: StepResult) -> None:
        """In the engine thread."""
        for request_id in [*(t.request_id for t in result.tokens), *(r.request_id for r in result.reserved)]:
            step = self._steps.pop(request_id, None)
            if step is not None:
                step.set_result(result)


class KVWorkers:
    """The workers and pool nodes of one process, by name."""

    def __init__(self) -> None:
        self._workers: dict[str, KVWorker | PoolShelf] = {}

    async def add(self, name: str, incarnation: str, model: Path, engine: EngineConfig, config: TransferConfig) -> None:
        self._workers[name] = await KVWorker.start(incarnation, model, engine, config)

    async def add_pool(
        self, name: str, incarnation: str, model: Path, engine: EngineConfig, config: TransferConfig
    ) -> None:
        self._workers[name] = await PoolShelf.start(incarnation, model, engine, config)

    async def on(self, name: str, method: str, *arguments: object) -> object:
        answer = getattr(self._workers[name], method)(*arguments)
        return await answer if isawaitable(answer) else answer

    async def drop(self, name: str) -> None:
        await self._workers.pop(name).close()

    def cpu_s(self) -> float:
        return time.process_time()


def _request(prompt: Sequence[int], kind: RequestKind, awaits_kv: bool = False) -> Request:
    return Request(
        os.urandom(4).hex(), list(prompt), len(prompt), SamplingParams(max_tokens=8), kind, awaits_kv=awaits_kv
    )
