"""A worker that offers blocks, seen over gRPC by a pool node: the `OfferingWorker` of real clusters."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from decode_worker.grpc_peer import CHANNEL_OPTIONS
from decode_worker.peer_wire import handshake_error, handshake_request, peer_info, unavailable, wire_refs, wire_ticket
from kv_transfer.messages import BlockRef, PeerInfo, Ticket
from rpc import peer_pb2_grpc, pool_pb2, pool_pb2_grpc
from security.channel_tls import ChannelTls
from security.connection import open_channel


class GrpcOfferingWorker:
    """Maintains one channel. Deadlines are the caller's: each call is cancelled with its task."""

    def __init__(self, address: str, tls: ChannelTls | None = None) -> None:
        self._address = address
        self._channel = open_channel(address, tls, CHANNEL_OPTIONS)
        self._peer = peer_pb2_grpc.PeerStub(self._channel)
        self._offers = pool_pb2_grpc.BlockOffersStub(self._channel)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        try:
            response = await self._peer.Handshake(handshake_request(me, incarnation))
        except grpc.aio.AioRpcError as error:
            raise handshake_error(self._address, error) from None
        return peer_info(response)

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        request = pool_pb2.CommitOfferRequest(ticket=wire_ticket(ticket), blocks=wire_refs(refs))
        with unavailable(self._address):
            response = await self._offers.CommitOffer(request)
        return list(response.valid)

    async def disconnect(self) -> None:
        await self._channel.close()
