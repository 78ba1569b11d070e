"""A session's events as a stream that always ends, and what is asked of transports that send."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from kv_transfer.block_part import WHOLE
from kv_transfer.messages import ChunkReady, FailureReason, PrefillDone, SessionEnded
from kv_transfer.peer import PeerUnavailable
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed
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


async def test_what_it_cannot_send_with_or_is_meant_for_another_is_refused(pair: Pair) -> None:
    with pytest.raises(TransferFailed, match="P has no transport gloo that sends"):
        await pair.peer.join(Invitation("gloo", bytes(16), "D", "P", b""))
    with pytest.raises(TransferFailed, match="P has no transport local that sends"):
        await pair.peer.send(SendOrder("local", bytes(16), 0, (1,), WHOLE))
    with pytest.raises(PeerUnavailable, match="this is P, not P-0"):
        await pair.peer.join(Invitation("gloo", bytes(16), "D", "P-0", b""))
