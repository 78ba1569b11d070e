"""From a caller's KV messages to the wire of proto/peer.proto and back, and from gRPC's errors to what callers know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import grpc

from kv_transfer.messages import BlockRef, Compatibility, FailureReason, HandoffError, PeerInfo, Ticket, TransportInfo
from kv_transfer.peer import PeerUnavailable
from rpc import peer_pb2, worker_pb2


@contextmanager
def unavailable(address: str) -> Iterator[None]:
    """Turns gRPC's errors into PeerUnavailable."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise call_failed(address, error) from None
    except grpc.aio.UsageError:
        raise PeerUnavailable(f"{address}: disconnected") from None


def call_failed(address: str, error: grpc.aio.AioRpcError) -> PeerUnavailable:
    return PeerUnavailable(f"{address}: {error.code().name}: {error.details()}")


def handshake_request(me: PeerInfo, incarnation: str) -> peer_pb2.HandshakeRequest:
    return peer_pb2.HandshakeRequest(
        incarnation=me.incarnation,
        compatibility=peer_pb2.Compatibility(**asdict(me.compatibility)),
        peer_incarnation=incarnation,
        transports=[peer_pb2.TransportInfo(name=t.name, metadata=t.metadata) for t in me.transports],
    )


def handshake_error(address: str, error: grpc.aio.AioRpcError) -> Exception:
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return HandoffError(FailureReason.INCOMPATIBLE, error.details() or "refused")
    return call_failed(address, error)


def peer_info(wire: peer_pb2.HandshakeResponse) -> PeerInfo:
    transports = tuple(TransportInfo(t.name, t.metadata) for t in wire.transports)
    return PeerInfo(wire.incarnation, Compatibility.read_from(wire.compatibility), transports)


def wire_ticket(ticket: Ticket) -> worker_pb2.Ticket:
    return worker_pb2.Ticket(session=ticket.session, attempt=ticket.attempt)


def wire_refs(refs: Sequence[BlockRef]) -> list[peer_pb2.BlockRef]:
    return [peer_pb2.BlockRef(block=ref.block, generation=ref.generation) for ref in refs]
