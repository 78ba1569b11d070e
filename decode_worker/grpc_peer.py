"""A prefill worker seen over gRPC: the `Peer` of real clusters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence

import grpc

from decode_worker.peer_wire import (
    call_failed,
    handshake_error,
    handshake_request,
    peer_info,
    unavailable,
    wire_refs,
    wire_ticket,
)
from engine.sampled_token import SampledToken, TokenLogprobs
from kv_transfer.messages import (
    BlockRef,
    ChunkReady,
    FailureReason,
    PeerInfo,
    PrefillDone,
    SessionEnded,
    SessionEvent,
    Ticket,
    Verdict,
)
from kv_transfer.peer import PeerUnavailable
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed
from rpc import peer_pb2, peer_pb2_grpc
from security.channel_tls import ChannelTls
from security.connection import open_channel

CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),  # else an idle link may be dead, and the next call is the first to know
    ("grpc.http2.ping_timeout_ms", 5_000),  # of gRPC's own pings: a keepalive waits for the answer to one under way
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
]


class GrpcPeer:
    """Maintains one channel. Deadlines are the caller's: each call is cancelled with its task."""

    def __init__(
        self, address: str, options: Sequence[tuple[str, int]] = CHANNEL_OPTIONS, tls: ChannelTls | None = None
    ) -> None:
        self._address = address
        self._channel = open_channel(address, tls, options)
        self._stub = peer_pb2_grpc.PeerStub(self._channel)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        try:
            response = await self._stub.Handshake(handshake_request(me, incarnation))
        except grpc.aio.AioRpcError as error:
            raise handshake_error(self._address, error) from None
        return peer_info(response)

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        request = peer_pb2.OpenRequest(ticket=wire_ticket(ticket), have_tokens=have_tokens)
        call = self._stub.Open(request)
        try:
            async for event in call:
                yield _session_event(event)
        except grpc.aio.AioRpcError as error:
            raise call_failed(self._address, error) from None
        finally:
            call.cancel()

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        request = peer_pb2.RenewRequest(tickets=[wire_ticket(ticket) for ticket in tickets])
        try:
            response = await self._stub.Renew(request)
        except grpc.aio.AioRpcError as error:
            raise call_failed(self._address, error) from None
        return list(response.alive)

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        request = peer_pb2.CommitRequest(ticket=wire_ticket(ticket), blocks=wire_refs(blocks), transport=transport)
        try:
            response = await self._stub.Commit(request)
        except grpc.aio.AioRpcError as error:
            raise call_failed(self._address, error) from None
        return Verdict.VALID if response.valid else Verdict.STALE

    async def close(self, ticket: Ticket) -> None:
        with unavailable(self._address):
            await self._stub.Close(peer_pb2.CloseRequest(ticket=wire_ticket(ticket)))

    async def join(self, invitation: Invitation) -> None:
        request = peer_pb2.JoinRequest(
            transport=invitation.transport,
            communicator=invitation.communicator,
            reader=invitation.reader,
            source=invitation.source,
            rendezvous=invitation.rendezvous,
        )
        await self._signal(self._stub.Join(request))

    async def send(self, order: SendOrder) -> None:
        request = peer_pb2.SendRequest(
            transport=order.transport,
            communicator=order.communicator,
            sequence=order.sequence,
            blocks=order.blocks,
            part_start=order.part.start,
            part_end=order.part.end,
        )
        await self._signal(self._stub.Send(request))

    async def _signal(self, call: Awaitable[object]) -> None:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise TransferFailed(error.details() or "refused") from None
            raise call_failed(self._address, error) from None
        except grpc.aio.UsageError:
            raise PeerUnavailable(f"{self._address}: disconnected") from None

    async def disconnect(self) -> None:
        await self._channel.close()


def _session_event(wire: peer_pb2.SessionEvent) -> SessionEvent:
    match wire.WhichOneof("event"):
        case "chunk":
            return _chunk(wire.chunk)
        case "done":
            done = wire.done
            logprobs = TokenLogprobs.read_from(done.first_logprobs) if done.HasField("first_logprobs") else None
            first_token = SampledToken(done.first_token, logprobs)
            return PrefillDone(
                _chunk(done.tail), first_token, bytes(done.token_hash), done.num_tokens, done.cached_tokens
            )
        case _:
            return SessionEnded(FailureReason(wire.ended.reason), wire.ended.detail)


def _chunk(wire: peer_pb2.ChunkReady) -> ChunkReady:
    layers = range(wire.layers.start, wire.layers.end) if wire.HasField("layers") else None
    refs = tuple(BlockRef(ref.block, ref.generation) for ref in wire.blocks)
    return ChunkReady(wire.sequence, wire.start, wire.end, refs, layers)
