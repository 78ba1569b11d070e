"""A session's events as a stream that always ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from kv_transfer.messages import ChunkReady, FailureReason, PrefillDone, SessionEnded
from tests.unit.kv_transfer.pair import WAIT_S, Pair, ticket


async def test_the_stream_of_a_session_that_is_opened_again_ends(pair: Pair) -> None:
    first = pair.peer.open(ticket(), 0)
    waiting = asyncio.ensure_future(anext(first))
    await pair.until(lambda: pair.leases.counts().active == 1)
    async with asyncio.timeout(WAIT_S), aclosing(pair.peer.open(ticket(), 0)) as second:
        told = asyncio.ensure_future(anext(second))
        event = await waiting
        assert isinstance(event, SessionEnded)
        assert event.reason is FailureReason.SUPERSEDED
        assert [event async for event in first] == []
        await pair.start_prefill([1, 2, 3], ticket())
        assert isinstance(await told, ChunkReady | PrefillDone)
        await pair.peer.close(ticket())
