"""Faults at every message of the hand-off: the short form of `python -m tests.faults`, which would see a wrong text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from engine.fake_runner import FakeModel
from kv_transfer.messages import BlockRef, PeerInfo, SessionEvent, Ticket, Verdict
from kv_transfer.peer import Peer
from kv_transfer.signalling import Invitation, SendOrder
from tests.fake_model import write_fake_model
from tests.faults.fault import DEATHS, Fault, Message
from tests.faults.real import RealPlan, RealRun
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
    result = run_round(Plan("drill", 250, rate=0.1, rare_rate=0.002))
    check_good(result)
    assert result.outcomes.total() == 250
    assert result.outcomes["valid"] > 125
    faults = {fault for _, fault in result.faults.hits}
    assert faults >= set(Fault) - set(DEATHS)
    assert len(faults & set(DEATHS)) >= 2
    assert len({message for message, _ in result.faults.hits}) >= len(Message) - 4  # handshakes and renewals are few


def test_nor_does_one_with_real_threads_and_the_real_clock() -> None:
    result = run_round(Plan("drill", 40, rate=0.1, threads=True))
    check_good(result)
    assert result.outcomes["valid"] > 15


def test_nor_does_one_between_processes_that_are_stopped_and_killed(tmp_path: Path) -> None:
    folder = write_fake_model(tmp_path / "model", FakeModel(num_layers=4, num_kv_heads=4, head_dim=64))
    result = RealRun(RealPlan("drill", 120, folder, tmp_path, {"num_blocks": 256}, rate=0.1, time_scale=0.2)).run()
    check_good(result)
    assert result.outcomes["valid"] > 60
    assert result.mishaps.total() >= 2


def test_a_seed_repeats_a_run() -> None:
    first, second = run_round(Plan("again", 60)), run_round(Plan("again", 60))
    assert (first.outcomes, first.failed_attempts) == (second.outcomes, second.failed_attempts)
    assert first.faults.hits == second.faults.hits


def test_a_peer_that_calls_everything_valid_is_found_out() -> None:
    """Else the drill would prove nothing."""
    assert run_round(Plan("credulous", 200, rate=0.12, wrap=CredulousPeer)).wrong_texts
