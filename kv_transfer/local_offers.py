"""A worker's offered blocks behind async methods: for who offers them, and for the gRPC service that pool nodes call.

Maintains nothing but the way into the engine thread and back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.engine_thread import EngineThread
from engine.errors import EngineStopped
from kv_transfer.block_offer import BlockOffer, BlockOffers
from kv_transfer.messages import BlockRef, Ticket
from kv_transfer.peer import PeerUnavailable

T = TypeVar("T")


class LocalOffers:
    """`BlockOffers`, which it advances after each step. Every method raises PeerUnavailable for a stopped engine."""

    def __init__(self, offers: BlockOffers, engine: EngineThread, clock: Callable[[], float] = time.monotonic) -> None:
        self._offers = offers
        self._engine = engine
        self._clock = clock
        engine.subscribe(lambda _: offers.advance(clock()))

    async def offer(self, keys: Sequence[bytes]) -> BlockOffer | None:
        return await self._call(lambda now: self._offers.offer(keys, now))

    async def commit(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        return await self._call(lambda now: self._offers.commit(ticket, refs, now))

    async def close(self, ticket: Ticket) -> None:
        await self._call(lambda now: self._offers.close(ticket, now))

    async def _call(self, command: Callable[[float], T]) -> T:
        try:
            return await asyncio.wrap_future(self._engine.call(lambda _: command(self._clock())))
        except EngineStopped as error:
            raise PeerUnavailable(str(error)) from error
