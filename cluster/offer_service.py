"""A worker's side of what it offered: pool nodes ask here whether what they read is what was offered."""

from __future__ import annotations

import grpc

from cluster.pool_service import Context, read_refs, read_ticket
from kv_transfer.local_offers import LocalOffers
from kv_transfer.peer import PeerUnavailable
from rpc import pool_pb2, pool_pb2_grpc


class OfferService(pool_pb2_grpc.BlockOffersServicer):
    """Translates; maintains nothing."""

    def __init__(self, offers: LocalOffers) -> None:
        self._offers = offers

    async def CommitOffer(  # noqa: N802  gRPC's name
        self, request: pool_pb2.CommitOfferRequest, context: Context
    ) -> pool_pb2.CommitOfferResponse:
        ticket = await read_ticket(request.ticket, context)
        try:
            valid = await self._offers.commit(ticket, read_refs(request.blocks))
        except PeerUnavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pool_pb2.CommitOfferResponse(valid=valid)
