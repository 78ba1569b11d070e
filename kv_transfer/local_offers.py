"""A worker's offered blocks as pool nodes ask about them: what the gRPC service answers from.

Maintains nothing but the way into the engine thread and back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from engine.engine_thread import EngineThread
from engine.errors import EngineStopped
from kv_transfer.block_offer import BlockOffers
from kv_transfer.messages import BlockRef, Ticket
from kv_transfer.peer import PeerUnavailable


class LocalOffers:
    """Advances `BlockOffers` after each step. Raises PeerUnavailable for a stopped engine."""

    def __init__(self, offers: BlockOffers, engine: EngineThread, clock: Callable[[], float] = time.monotonic) -> None:
        self._offers = offers
        self._engine = engine
        self._clock = clock
        engine.subscribe(lambda _: offers.advance(clock()))

    async def commit(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        commit = self._engine.call(lambda _: self._offers.commit(ticket, refs, self._clock()))
        try:
            return await asyncio.wrap_future(commit)
        except EngineStopped as error:
            raise PeerUnavailable(str(error)) from error
