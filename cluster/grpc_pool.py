"""A pool node seen over gRPC: the `PoolNode` of real clusters."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from decode_worker.grpc_peer import CHANNEL_OPTIONS
from decode_worker.peer_wire import handshake_error, handshake_request, peer_info, unavailable, wire_refs, wire_ticket
from kv_transfer.messages import BlockRef, PeerInfo, Ticket
from kv_transfer.pool_messages import OfferSource
from rpc import peer_pb2, pool_pb2, pool_pb2_grpc
from security.channel_tls import ChannelTls
from security.connection import open_channel


class GrpcPoolNode:
    """Maintains one channel. Deadlines are the caller's: each call is cancelled with its task."""

    def __init__(self, address: str, tls: ChannelTls | None = None) -> None:
        self._address = address
        self._channel = open_channel(address, tls, CHANNEL_OPTIONS)
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
