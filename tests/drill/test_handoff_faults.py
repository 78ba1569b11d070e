"""Faults at every message of the hand-off: the short form of `python -m tests.faults`, which would see a wrong text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest

from kv_transfer.messages import BlockRef, PeerInfo, SessionEvent, Ticket, Verdict
from kv_transfer.peer import Peer
from kv_transfer.signalling import Invitation, SendOrder
from tests.faults.fault import DEATHS, Fault, Message
from tests.faults.round import Plan, Result, run_round

pytestmark = pytest.mark.drill


class CredulousPeer:
    """Calls everything valid."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return await self._peer.handshake(me, incarnation)

    def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        return self._peer.open(ticket, have_tokens)

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        return await self._peer.renew(tickets)

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        await self._peer.commit(ticket, blocks, transport)
        return Verdict.VALID

    async def close(self, ticket: Ticket) -> None:
        await self._peer.close(ticket)

    async def join(self, invitation: Invitation) -> None:
        await self._peer.join(invitation)

    async def send(self, order: SendOrder) -> None:
        await self._peer.send(order)


def check_good(result: Result) -> None:
    assert result.is_good, (result.wrong_texts, result.hangs, result.left_over)


def test_no_fault_at_any_message_makes_a_wrong_text_a_hang_or_a_leak() -> None:
    result = run_round(Plan("drill", 300, rate=0.1, rare_rate=0.002))
    check_good(result)
    assert result.outcomes.total() == 300
    assert result.outcomes["valid"] > 150
    faults = {fault for _, fault in result.faults.hits}
    assert faults >= set(Fault) - set(DEATHS)
    assert len(faults & set(DEATHS)) >= 2
    assert len({message for message, _ in result.faults.hits}) >= len(Message) - 1


def test_nor_does_one_with_real_threads_and_the_real_clock() -> None:
    result = run_round(Plan("drill", 60, rate=0.1, threads=True))
    check_good(result)
    assert result.outcomes["valid"] > 20


def test_a_seed_repeats_a_run() -> None:
    first, second = run_round(Plan("again", 60)), run_round(Plan("again", 60))
    assert (first.outcomes, first.failed_attempts) == (second.outcomes, second.failed_attempts)
    assert first.faults.hits == second.faults.hits


def test_a_peer_that_calls_everything_valid_is_found_out() -> None:
    """Else the drill would prove nothing."""
    assert run_round(Plan("credulous", 200, rate=0.12, wrap=CredulousPeer)).wrong_texts
