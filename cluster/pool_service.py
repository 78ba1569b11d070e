"""The gRPC face of `LocalPoolNode`: what workers call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import grpc

from engine.block_hash import DIGEST_BYTES
from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.messages import (
    BlockRef,
    Compatibility,
    FailureReason,
    HandoffError,
    PeerInfo,
    Ticket,
    TransportInfo,
)
from kv_transfer.pool_messages import OfferSource
from rpc import peer_pb2, pool_pb2, pool_pb2_grpc, worker_pb2

Context = grpc.aio.ServicerContext[Any, Any]


class PoolService(pool_pb2_grpc.PoolServicer):
    """Translates; maintains nothing."""

    def __init__(self, node: LocalPoolNode) -> None:
        self._node = node

    async def Handshake(  # noqa: N802  gRPC's names, here and below
        self, request: peer_pb2.HandshakeRequest, context: Context
    ) -> peer_pb2.HandshakeResponse:
        transports = tuple(TransportInfo(t.name, t.metadata) for t in request.transports)
        worker = PeerInfo(request.incarnation, Compatibility.read_from(request.compatibility), transports)
        try:
            info = await self._node.handshake(worker, request.peer_incarnation)
        except HandoffError as error:
            refused = error.reason is FailureReason.INCOMPATIBLE
            code = grpc.StatusCode.FAILED_PRECONDITION if refused else grpc.StatusCode.NOT_FOUND
            await context.abort(code, error.detail)
        return peer_pb2.HandshakeResponse(
            incarnation=info.incarnation,
            compatibility=peer_pb2.Compatibility(**asdict(info.compatibility)),
            transports=[peer_pb2.TransportInfo(name=t.name, metadata=t.metadata) for t in info.transports],
        )

    async def Lookup(self, request: pool_pb2.LookupRequest, context: Context) -> pool_pb2.LookupResponse:  # noqa: N802
        reader = await read_ticket(request.reader, context)
        refs = await self._node.lookup(reader, await _keys(request.keys, context))
        found = [pool_pb2.FoundBlock(place=i, block=_wire_ref(ref)) for i, ref in enumerate(refs) if ref is not None]
        return pool_pb2.LookupResponse(found=found)

    async def Commit(  # noqa: N802
        self, request: pool_pb2.PoolCommitRequest, context: Context
    ) -> pool_pb2.PoolCommitResponse:
        reader = await read_ticket(request.reader, context)
        keys = await _keys(request.keys, context, len(request.blocks))
        return pool_pb2.PoolCommitResponse(valid=await self._node.commit(reader, keys, read_refs(request.blocks)))

    async def Close(self, request: peer_pb2.CloseRequest, context: Context) -> peer_pb2.CloseResponse:  # noqa: N802
        await self._node.close(await read_ticket(request.ticket, context))
        return peer_pb2.CloseResponse()

    async def Offer(self, request: pool_pb2.OfferRequest, context: Context) -> pool_pb2.OfferResponse:  # noqa: N802
        source = OfferSource(request.incarnation, request.address, await read_ticket(request.ticket, context))
        keys = await _keys(request.keys, context, len(request.blocks))
        return pool_pb2.OfferResponse(held=await self._node.offer(source, keys, read_refs(request.blocks)))


async def read_ticket(wire: worker_pb2.Ticket, context: Context) -> Ticket:
    if len(wire.session) != 16:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"ticket.session has {len(wire.session)} bytes, not 16")
    return Ticket(bytes(wire.session), wire.attempt)


def read_refs(blocks: Sequence[peer_pb2.BlockRef]) -> list[BlockRef]:
    return [BlockRef(ref.block, ref.generation) for ref in blocks]


async def _keys(keys: Sequence[bytes], context: Context, num_blocks: int | None = None) -> list[bytes]:
    """As many as there are blocks, where these come with them."""
    if any(len(key) != DIGEST_BYTES for key in keys):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a key does not have {DIGEST_BYTES} bytes")
    if num_blocks is not None and len(keys) != num_blocks:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{len(keys)} keys come with {num_blocks} blocks")
    return [bytes(key) for key in keys]


def _wire_ref(ref: BlockRef) -> peer_pb2.BlockRef:
    return peer_pb2.BlockRef(block=ref.block, generation=ref.generation)
