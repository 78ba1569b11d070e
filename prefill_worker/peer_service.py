"""The gRPC face of `LeaseTable`: what decode workers call. Every verdict is made in the engine thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any, TypeVar

import grpc

from engine.engine_thread import EngineThread
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import BlockRef, ChunkReady, PeerInfo, PrefillDone, SessionEnded, SessionEvent, Ticket, Verdict
from kv_transfer.metrics import TransferMetrics
from rpc import peer_pb2, peer_pb2_grpc, worker_pb2

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class PeerService(peer_pb2_grpc.PeerServicer):
    """Translates; maintains nothing. A stream of `Open` ends with its session, which a deadline always ends."""

    def __init__(
        self, engine: EngineThread, leases: LeaseTable, me: PeerInfo, block_bytes: int, metrics: TransferMetrics
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._me = me
        self._block_bytes = block_bytes
        self._metrics = metrics

    async def Handshake(  # noqa: N802  gRPC's names, here and below
        self, request: peer_pb2.HandshakeRequest, context: Context
    ) -> peer_pb2.HandshakeResponse:
        if request.peer_incarnation != self._me.incarnation:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"peer_incarnation {request.peer_incarnation} is gone; {self._me.incarnation} serves here",
            )
        mine = self._me.compatibility
        theirs = type(mine)(**{field: getattr(request.compatibility, field) for field in mine.__slots__})
        difference = mine.mismatch(theirs)
        if difference is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the two cannot share KV: {difference}")
        return peer_pb2.HandshakeResponse(
            incarnation=self._me.incarnation,
            compatibility=peer_pb2.Compatibility(**{field: getattr(mine, field) for field in mine.__slots__}),
            transports=[peer_pb2.TransportInfo(name=t.name, metadata=t.metadata) for t in self._me.transports],
        )

    async def Open(  # noqa: N802
        self, request: peer_pb2.OpenRequest, context: Context
    ) -> AsyncIterator[peer_pb2.SessionEvent]:
        ticket = await _ticket(request.ticket, context)
        block_size = self._me.compatibility.block_size
        if request.have_tokens % block_size:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"have_tokens ({request.have_tokens}) is not a multiple of the block size ({block_size})",
            )
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()

        def listen(event: SessionEvent) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        await self._call(lambda: self._leases.open(ticket, request.have_tokens, listen, monotonic()))
        while True:
            event = await events.get()
            yield _wire_event(event)
            if isinstance(event, SessionEnded):
                return

    async def Renew(self, request: peer_pb2.RenewRequest, context: Context) -> peer_pb2.RenewResponse:  # noqa: N802
        tickets = [await _ticket(ticket, context) for ticket in request.tickets]
        return peer_pb2.RenewResponse(alive=await self._call(lambda: self._leases.renew(tickets, monotonic())))

    async def Commit(self, request: peer_pb2.CommitRequest, context: Context) -> peer_pb2.CommitResponse:  # noqa: N802
        ticket = await _ticket(request.ticket, context)
        blocks = [BlockRef(ref.block, ref.generation) for ref in request.blocks]
        verdict = await self._call(lambda: self._leases.commit(ticket, blocks, monotonic()))
        if verdict is Verdict.VALID:
            self._metrics.sent(len(blocks) * self._block_bytes)
        return peer_pb2.CommitResponse(valid=verdict is Verdict.VALID)

    async def Close(self, request: peer_pb2.CloseRequest, context: Context) -> peer_pb2.CloseResponse:  # noqa: N802
        ticket = await _ticket(request.ticket, context)
        await self._call(lambda: self._leases.close(ticket, monotonic()))
        return peer_pb2.CloseResponse()

    async def _call(self, command: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._engine.call(lambda engine: command()))


async def _ticket(wire: worker_pb2.Ticket, context: Context) -> Ticket:
    if len(wire.session) != 16:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"ticket.session has {len(wire.session)} bytes, not 16")
    return Ticket(bytes(wire.session), wire.attempt)


def _wire_event(event: SessionEvent) -> peer_pb2.SessionEvent:
    match event:
        case ChunkReady():
            return peer_pb2.SessionEvent(chunk=_wire_chunk(event))
        case PrefillDone():
            done = peer_pb2.PrefillDone(
                tail=_wire_chunk(event.tail),
                first_token=event.first_token,
                token_hash=event.token_hash,
                num_tokens=event.num_tokens,
                cached_tokens=event.cached_tokens,
            )
            return peer_pb2.SessionEvent(done=done)
        case SessionEnded():
            return peer_pb2.SessionEvent(ended=peer_pb2.SessionEnded(reason=event.reason, detail=event.detail))


def _wire_chunk(chunk: ChunkReady) -> peer_pb2.ChunkReady:
    refs = [peer_pb2.BlockRef(block=ref.block, generation=ref.generation) for ref in chunk.blocks]
    return peer_pb2.ChunkReady(sequence=chunk.sequence, start=chunk.start, end=chunk.end, blocks=refs)
