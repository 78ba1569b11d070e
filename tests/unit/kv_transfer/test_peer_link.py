"""One handshake for many hand-offs, leases renewed together, and a silent peer given up in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest

from kv_transfer.messages import (
    BlockRef,
    FailureReason,
    HandoffError,
    PeerInfo,
    SessionEvent,
    Ticket,
    TransportInfo,
    Verdict,
)
from kv_transfer.peer_link import PeerLink
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed
from tests.unit.kv_transfer.conftest import PairFactory
from tests.unit.kv_transfer.lossy_peer import LossyPeer
from tests.unit.kv_transfer.pair import Pair, make_engine, ticket, transfer_config

OTHER = ticket(session=b"another session.")


class ScriptedPeer:
    """Answers as a test says, and records what it was asked."""

    def __init__(self, info: PeerInfo) -> None:
        self.info = info
        self.gone: set[Ticket] = set()
        self.num_missing = 0  # answers, of each renewal
        self.renewals: list[list[Ticket]] = []
        self.num_handshakes = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        self.num_handshakes += 1
        await self.answers.wait()
        return self.info

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        raise NotImplementedError
        yield

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        self.renewals.append(list(tickets))
        return [t not in self.gone for t in tickets][self.num_missing :]

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        raise NotImplementedError

    async def close(self, ticket: Ticket) -> None:
        raise NotImplementedError

    async def join(self, invitation: Invitation) -> None:
        raise NotImplementedError

    async def send(self, order: SendOrder) -> None:
        raise NotImplementedError


QUICK = transfer_config(renew_every_s=0.02, silent_peer_s=0.1)


@pytest.fixture
def pair(new_pair: PairFactory) -> Pair:
    return new_pair(QUICK)


@pytest.fixture
def peer(pair: Pair) -> ScriptedPeer:
    return ScriptedPeer(pair.prefill.info)


class TestConnecting:
    async def test_shakes_hands_once_for_all(self, pair: Pair, peer: ScriptedPeer) -> None:
        link = pair.new_link(peer)
        transports = await asyncio.gather(*(link.connect() for _ in range(5)), link.connect("local"))
        assert set(transports) == {pair.decode.transport}
        assert peer.num_handshakes == 1

    async def test_shakes_hands_again_after_a_failed_read(self, pair: Pair, peer: ScriptedPeer) -> None:
        link = pair.new_link(peer)
        await link.connect()
        link.disconnect()
        await link.connect()
        assert peer.num_handshakes == 2

    async def test_asks_a_peer_that_was_silent_whether_it_answers_before_it_relies_on_it(
        self, new_pair: PairFactory
    ) -> None:
        pair = new_pair(transfer_config(handshake_timeout_s=0.05))
        peer = ScriptedPeer(pair.prefill.info)
        link = pair.new_link(peer)
        await link.connect()
        link.suspect("local", [])
        peer.answers.clear()
        with pytest.raises(HandoffError, match="did not answer") as caught:
            await link.connect()
        assert caught.value.reason is FailureReason.HANDSHAKE_TIMEOUT
        peer.answers.set()
        await link.connect()
        await link.connect()
        assert peer.num_handshakes == 3

    async def test_adds_no_read_to_those_that_are_in_doubt(self, pair: Pair, peer: ScriptedPeer) -> None:
        link = pair.new_link(peer)
        read: Future[None] = Future()
        link.suspect("local", [read])
        with pytest.raises(HandoffError, match="1 reads from P are in doubt") as caught:
            await link.connect()
        assert caught.value.reason is FailureReason.TRANSFER_FAILED
        read.set_exception(TransferFailed("late"))
        assert await link.connect() is pair.decode.transport

    async def test_refuses_a_peer_that_differs_and_asks_no_more(self, pair: Pair, peer: ScriptedPeer) -> None:
        peer.info = replace(peer.info, compatibility=replace(peer.info.compatibility, block_size=99))
        link = pair.new_link(peer)
        for _ in range(2):
            with pytest.raises(HandoffError, match="block_size is 4 here and 99 on the peer") as caught:
                await link.connect()
            assert caught.value.reason is FailureReason.INCOMPATIBLE
        assert peer.num_handshakes == 1

    async def test_is_refused_by_a_peer_that_differs(self, new_pair: PairFactory) -> None:
        pair = new_pair(decode=make_engine(block_size=8))
        with pytest.raises(HandoffError, match="block_size is 4 here and 8 on the peer"):
            await pair.link.connect()

    async def test_refuses_another_incarnation(self, pair: Pair, peer: ScriptedPeer) -> None:
        peer.info = replace(peer.info, incarnation="restarted")
        with pytest.raises(HandoffError, match="restarted answered instead of P") as caught:
            await pair.new_link(peer).connect()
        assert caught.value.reason is FailureReason.PEER_UNAVAILABLE

    async def test_is_refused_by_another_incarnation(self, pair: Pair) -> None:
        with pytest.raises(HandoffError, match="this is P, not older"):
            await pair.new_link(pair.peer, "older").connect()

    async def test_names_the_transports_when_none_is_common(self, pair: Pair, peer: ScriptedPeer) -> None:
        peer.info = replace(peer.info, transports=(TransportInfo("nccl", b""),))
        with pytest.raises(HandoffError, match="local is wanted here, P has nccl"):
            await pair.new_link(peer).connect()

    async def test_does_not_take_another_transport_than_the_one_asked_for(self, pair: Pair, peer: ScriptedPeer) -> None:
        with pytest.raises(HandoffError, match="nixl is wanted here, P has local"):
            await pair.new_link(peer).connect("nixl")

    async def test_fails_when_the_transport_cannot_reach_the_peer(self, pair: Pair, peer: ScriptedPeer) -> None:
        peer.info = replace(peer.info, incarnation="elsewhere")
        with pytest.raises(HandoffError) as caught:
            await pair.new_link(peer, "elsewhere").connect()
        assert caught.value.reason is FailureReason.TRANSFER_FAILED


class TestLeases:
    async def test_are_renewed_together(self, pair: Pair, peer: ScriptedPeer) -> None:
        link = pair.new_link(peer)
        with link.lease(ticket()), link.lease(OTHER):
            await pair.until(lambda: len(peer.renewals) >= 2)
        assert peer.renewals[0] == [ticket(), OTHER]

    async def test_are_renewed_only_while_they_are_held(self, pair: Pair, peer: ScriptedPeer) -> None:
        link = pair.new_link(peer)
        with link.lease(OTHER):
            with link.lease(ticket()):
                await pair.until(lambda: bool(peer.renewals))
            peer.renewals.clear()
            await pair.until(lambda: bool(peer.renewals))
            assert peer.renewals == [[OTHER]]

    async def test_that_the_peer_no_longer_knows_are_lost(self, pair: Pair, peer: ScriptedPeer) -> None:
        link = pair.new_link(peer)
        peer.gone.add(ticket())
        with link.lease(ticket()) as lost, link.lease(OTHER) as kept:
            async with asyncio.timeout(1.0):
                error = await lost
            assert error.reason is FailureReason.LEASE_EXPIRED
            assert not kept.done()

    async def test_are_all_lost_when_the_peer_is_silent(self, pair: Pair) -> None:
        peer = LossyPeer(pair.peer)
        peer.silent.set()
        link = pair.new_link(peer)
        clock = asyncio.get_running_loop().time
        started_at = clock()
        with link.lease(ticket()) as lost, link.lease(OTHER) as lost_too:
            async with asyncio.timeout(1.0):
                errors = [await lost, await lost_too]
        assert {error.reason for error in errors} == {FailureReason.PEER_SILENT}
        assert QUICK.silent_peer_s <= clock() - started_at < 2 * QUICK.silent_peer_s

    async def test_are_all_lost_when_the_peer_answers_nonsense_for_as_long(
        self, pair: Pair, peer: ScriptedPeer, caplog: pytest.LogCaptureFixture
    ) -> None:
        peer.num_missing = 1
        with pair.new_link(peer).lease(ticket()) as lost:
            async with asyncio.timeout(1.0):
                error = await lost
        assert error.reason is FailureReason.PEER_SILENT
        assert len(peer.renewals) > 1
        assert "the leases of P could not be renewed" in caplog.text

    async def test_are_kept_while_the_peer_is_heard_otherwise(self, pair: Pair) -> None:
        peer = LossyPeer(pair.peer)
        peer.silent.set()
        link = pair.new_link(peer)
        ends_at = asyncio.get_running_loop().time() + 3 * QUICK.silent_peer_s
        with link.lease(ticket()) as lost:
            while asyncio.get_running_loop().time() < ends_at:
                link.heard()
                await pair.on_decode(lambda _: None)
            assert not lost.done()


async def test_a_session_that_cannot_be_closed_is_left_to_its_lease(new_pair: PairFactory) -> None:
    pair = new_pair(transfer_config(verdict_timeout_s=0.05))
    peer = LossyPeer(pair.peer)
    peer.silent.set()
    link: PeerLink = pair.new_link(peer)
    link.close_session(ticket())
    async with asyncio.timeout(1.0):
        await link.close()


async def test_closing_a_link_leaves_a_newer_one_to_the_same_peer_connected(new_pair: PairFactory) -> None:
    pair = new_pair(transfer_config(verdict_timeout_s=0.05))
    peer = LossyPeer(pair.peer)
    older = pair.new_link(peer)
    await older.connect()
    peer.silent.set()
    older.close_session(ticket())
    closing = asyncio.create_task(older.close())
    await pair.on_decode(lambda _: None)  # it has begun
    transport = await pair.link.connect()
    await closing
    slot = await pair.decode.ring.acquire(1.0)
    await asyncio.wrap_future(transport.read("P", [0], slot))
    pair.decode.ring.release(slot)
