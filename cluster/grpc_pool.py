"""A pool node seen over gRPC: the `PoolNode` of real clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import grpc

from decode_worker.grpc_peer import CHANNEL_OPTIONS
from kv_transfer.messages import (
    BlockRef,
    Compatibility,
    FailureReason,
    HandoffError,
    PeerInfo,
    Ticket,
    TransportInfo,
)
from kv_transfer.peer import PeerUnavailable
from kv_transfer.pool_messages import OfferSource
from rpc import peer_pb2, pool_pb2, pool_pb2_grpc, worker_pb2


class GrpcPoolNode:
    """Maintains one channel. Deadlines are the caller's: each call is cancelled with its task."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = pool_pb2_grpc.PoolStub(self._channel)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        try:
            response = await self._stub.Handshake(handshake_request(me, incarnation))
        except grpc.aio.AioRpcError as error:
            raise handshake_error(self._address, error) from None
        return peer_info(response)

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        request = pool_pb2.LookupRequest(reader=wire_ticket(reader), keys=keys)
        with unavailable(self._address):
            response = await self._stub.Lookup(request)
        refs: list[BlockRef | None] = [None] * len(keys)
        for found in response.found:
            refs[found.place] = BlockRef(found.block.block, found.block.generation)
        return refs

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        request = pool_pb2.PoolCommitRequest(reader=wire_ticket(reader), keys=keys, blocks=wire_refs(refs))
        with unavailable(self._address):
            response = await self._stub.Commit(request)
        return list(response.valid)

    async def close(self, reader: Ticket) -> None:
        with unavailable(self._address):
            await self._stub.Close(peer_pb2.CloseRequest(ticket=wire_ticket(reader)))

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        request = pool_pb2.OfferRequest(
            incarnation=source.incarnation,
            address=source.address,
            ticket=wire_ticket(source.ticket),
            keys=keys,
            blocks=wire_refs(refs),
        )
        with unavailable(self._address):
            response = await self._stub.Offer(request)
        return list(response.held)

    async def disconnect(self) -> None:
        await self._channel.close()


@contextmanager
def unavailable(address: str) -> Iterator[None]:
    """Turns gRPC's errors into PeerUnavailable."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise PeerUnavailable(f"{address}: {error.code().name}: {error.details()}") from None
    except grpc.aio.UsageError:
        raise PeerUnavailable(f"{address}: disconnected") from None


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
    return PeerUnavailable(f"{address}: {error.code().name}: {error.details()}")


def peer_info(wire: peer_pb2.HandshakeResponse) -> PeerInfo:
    transports = tuple(TransportInfo(t.name, t.metadata) for t in wire.transports)
    return PeerInfo(wire.incarnation, Compatibility.read_from(wire.compatibility), transports)


def wire_ticket(ticket: Ticket) -> worker_pb2.Ticket:
    return worker_pb2.Ticket(session=ticket.session, attempt=ticket.attempt)


def wire_refs(refs: Sequence[BlockRef]) -> list[peer_pb2.BlockRef]:
    return [peer_pb2.BlockRef(block=ref.block, generation=ref.generation) for ref in refs]
