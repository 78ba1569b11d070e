"""The gRPC face of `LocalPeer`: what decode workers call."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable
from dataclasses import asdict
from typing import Any

import grpc

from engine.kv_cache import KVLayout
from engine.sampled_token import SampledToken
from kv_transfer.block_part import BlockPart
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import (
    BlockRef,
    ChunkReady,
    Compatibility,
    FailureReason,
    HandoffError,
    PeerInfo,
    PrefillDone,
    SessionEnded,
    SessionEvent,
    Ticket,
    TransportInfo,
    Verdict,
)
from kv_transfer.metrics import TransferMetrics
from kv_transfer.peer import PeerUnavailable
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed
from rpc import peer_pb2, peer_pb2_grpc, worker_pb2

Context = grpc.aio.ServicerContext[Any, Any]
NUM_COUNTED = 1000  # the last sessions; D asks again within seconds or not at all


class PeerService(peer_pb2_grpc.PeerServicer):
    """Translates, and counts what was called valid, each session once."""

    def __init__(self, peer: LocalPeer, layout: KVLayout, metrics: TransferMetrics) -> None:
        self._peer = peer
        self._layout = layout
        self._metrics = metrics
        self._counted: deque[Ticket] = deque(maxlen=NUM_COUNTED)

    async def Handshake(  # noqa: N802  gRPC's names, here and below
        self, request: peer_pb2.HandshakeRequest, context: Context
    ) -> peer_pb2.HandshakeResponse:
        try:
            info = await self._peer.handshake(_peer_info(request), request.peer_incarnation)
        except HandoffError as error:
            refused = error.reason is FailureReason.INCOMPATIBLE
            code = grpc.StatusCode.FAILED_PRECONDITION if refused else grpc.StatusCode.NOT_FOUND
            await context.abort(code, error.detail)
        return peer_pb2.HandshakeResponse(
            incarnation=info.incarnation,
            compatibility=peer_pb2.Compatibility(**asdict(info.compatibility)),
            transports=[peer_pb2.TransportInfo(name=t.name, metadata=t.metadata) for t in info.transports],
        )

    async def Open(  # noqa: N802
        self, request: peer_pb2.OpenRequest, context: Context
    ) -> AsyncIterator[peer_pb2.SessionEvent]:
        ticket = await _ticket(request.ticket, context)
        if request.have_tokens % self._layout.block_size:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"have_tokens ({request.have_tokens}) is not a multiple of the block size ({self._layout.block_size})",
            )
        async for event in self._peer.open(ticket, request.have_tokens):
            yield _wire_event(event)

    async def Renew(self, request: peer_pb2.RenewRequest, context: Context) -> peer_pb2.RenewResponse:  # noqa: N802
        tickets = [await _ticket(ticket, context) for ticket in request.tickets]
        return peer_pb2.RenewResponse(alive=await self._peer.renew(tickets))

    async def Commit(self, request: peer_pb2.CommitRequest, context: Context) -> peer_pb2.CommitResponse:  # noqa: N802
        ticket = await _ticket(request.ticket, context)
        blocks = [BlockRef(ref.block, ref.generation) for ref in request.blocks]
        verdict = await self._peer.commit(ticket, blocks, request.transport)
        if verdict is Verdict.VALID and ticket not in self._counted:  # else its first answer was lost
            self._counted.append(ticket)
            transport = request.transport if request.transport in self._peer.transport_names else "unknown"
            self._metrics.sent(transport, len(blocks) * self._layout.block_bytes)
        return peer_pb2.CommitResponse(valid=verdict is Verdict.VALID)

    async def Close(self, request: peer_pb2.CloseRequest, context: Context) -> peer_pb2.CloseResponse:  # noqa: N802
        await self._peer.close(await _ticket(request.ticket, context))
        return peer_pb2.CloseResponse()

    async def Join(self, request: peer_pb2.JoinRequest, context: Context) -> peer_pb2.JoinResponse:  # noqa: N802
        invitation = Invitation(
            request.transport, request.communicator, request.reader, request.source, request.rendezvous
        )
        await _signalled(self._peer.join(invitation), context)
        return peer_pb2.JoinResponse()

    async def Send(self, request: peer_pb2.SendRequest, context: Context) -> peer_pb2.SendResponse:  # noqa: N802
        part = BlockPart(request.part_start, request.part_end if request.HasField("part_end") else None)
        order = SendOrder(request.transport, request.communicator, request.sequence, tuple(request.blocks), part)
        await _signalled(self._peer.send(order), context)
        return peer_pb2.SendResponse()


async def _signalled(call: Awaitable[None], context: Context) -> None:
    try:
        await call
    except TransferFailed as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    except PeerUnavailable as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, str(error))


def _peer_info(request: peer_pb2.HandshakeRequest) -> PeerInfo:
    transports = tuple(TransportInfo(t.name, t.metadata) for t in request.transports)
    return PeerInfo(request.incarnation, Compatibility.read_from(request.compatibility), transports)


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
                first_token=event.first_token.token_id,
                first_logprobs=_wire_logprobs(event.first_token),
                token_hash=event.token_hash,
                num_tokens=event.num_tokens,
                cached_tokens=event.cached_tokens,
            )
            return peer_pb2.SessionEvent(done=done)
        case SessionEnded():
            return peer_pb2.SessionEvent(ended=peer_pb2.SessionEnded(reason=event.reason, detail=event.detail))


def _wire_logprobs(token: SampledToken) -> worker_pb2.TokenLogprobs | None:
    return None if token.logprobs is None else worker_pb2.TokenLogprobs(**asdict(token.logprobs))


def _wire_chunk(chunk: ChunkReady) -> peer_pb2.ChunkReady:
    refs = [peer_pb2.BlockRef(block=ref.block, generation=ref.generation) for ref in chunk.blocks]
    layers = None
    if chunk.layers is not None:
        layers = peer_pb2.LayerRange(start=chunk.layers.start, end=chunk.layers.stop)
    return peer_pb2.ChunkReady(sequence=chunk.sequence, start=chunk.start, end=chunk.end, blocks=refs, layers=layers)
