"""Faults at every message of the KV plane: the short form of `python -m tests.faults`, which would see a wrong text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel
from kv_transfer.messages import BlockRef, PeerInfo, SessionEvent, Ticket, Verdict
from kv_transfer.peer import Peer
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_source import OfferingWorker
from kv_transfer.signalling import Invitation, SendOrder
from tests.faults.fault import DEATHS, POOL_MISHAPS, Fault, Message
from tests.faults.plan import RATES, Kind, Plan, Result
from tests.faults.real import RealRun
from tests.faults.real_plan import RealPlan
from tests.faults.round import run_round

pytestmark = pytest.mark.drill
UNANSWERED = frozenset(Fault) - {Fault.LATE, Fault.TORN, Fault.CLOCK_JUMPS}  # these have nodes avoided
SLOW_S = 0.4  # below what a worker waits for a node
RARE = {*DEATHS, *POOL_MISHAPS}
TWO_SIDED = {Message.JOIN, Message.JOINED, Message.SEND, Message.AGREED, Message.ENTRY}
POOLED = {message for message in Message if message.startswith(("pool", "pull"))}
HAND_OFF = set(Message) - TWO_SIDED - POOLED - {Message.CONNECT, Message.READ}
MESSAGES = {
    Kind.ONE_SIDED: HAND_OFF | {Message.CONNECT, Message.READ},
    Kind.TWO_SIDED: HAND_OFF | TWO_SIDED,
    Kind.POOLED: POOLED | {Message.PREFILL, Message.CONNECT},
}


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


class CredulousNode:
    """Leases nothing, answers slowly, and calls everything valid that was read from it."""

    def __init__(self, node: PoolNode) -> None:
        self._node = node

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return await self._node.handshake(me, incarnation)

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        refs = await self._node.lookup(reader, keys)
        await self._node.close(reader)
        await asyncio.sleep(SLOW_S)
        return refs

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        await self._node.commit(reader, keys, refs)
        return [True] * len(keys)

    async def close(self, reader: Ticket) -> None:
        await self._node.close(reader)

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        return await self._node.offer(source, keys, refs)

    async def disconnect(self) -> None:
        await self._node.disconnect()


class CredulousOfferer:
    """Calls everything valid that a node pulled from it."""

    def __init__(self, worker: OfferingWorker) -> None:
        self._worker = worker

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return await self._worker.handshake(me, incarnation)

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        await self._worker.commit_offer(ticket, refs)
        return [True] * len(refs)

    async def disconnect(self) -> None:
        await self._worker.disconnect()


def check_good(result: Result) -> None:
    assert result.is_good, (result.wrong_texts, result.hangs, result.left_over)


def num_by_kv(result: Result) -> int:
    return result.outcomes["valid"] + result.outcomes["read from the pool"]


@pytest.mark.parametrize("kind", Kind)
def test_no_fault_at_any_message_makes_a_wrong_text_a_hang_or_a_leak(kind: Kind) -> None:
    result = run_round(Plan("drill", 160, kind, rate=RATES[kind], rare_rate=0.003))
    check_good(result)
    assert result.outcomes.total() == 160
    assert num_by_kv(result) > 30
    assert len({message for message, _ in result.faults.hits}) >= len(MESSAGES[kind]) - 6  # handshakes are few
    assert len({fault for _, fault in result.faults.hits} & RARE) >= 2


@pytest.mark.parametrize("kind", Kind)
def test_nor_does_one_with_real_threads_and_the_real_clock(kind: Kind) -> None:
    result = run_round(Plan("drill", 40, kind, threads=True))
    check_good(result)
    assert num_by_kv(result) > 5


def test_nor_does_one_between_processes_that_are_stopped_and_killed(tmp_path: Path) -> None:
    folder = write_fake_model(tmp_path / "model", FakeModel(num_layers=4, num_kv_heads=4, head_dim=64))
    result = RealRun(RealPlan("drill", 120, folder, tmp_path, {"num_blocks": 64}, rate=0.1, time_scale=0.2)).run()
    check_good(result)
    assert result.outcomes["valid"] > 30
    assert result.outcomes["pooled"] > 30
    assert result.num_found
    assert result.mishaps.total() >= 2


@pytest.mark.parametrize("kind", Kind)
def test_a_seed_repeats_a_run(kind: Kind) -> None:
    first, second = run_round(Plan("again", 40, kind)), run_round(Plan("again", 40, kind))
    assert (first.outcomes, first.failed_attempts) == (second.outcomes, second.failed_attempts)
    assert first.faults.hits == second.faults.hits


@pytest.mark.parametrize(
    "plan",
    [
        Plan("credulous", 150, Kind.ONE_SIDED, rate=0.12, wrap=CredulousPeer),
        Plan("credulous", 150, Kind.TWO_SIDED, rate=0.08, wrap=CredulousPeer),
        Plan("credulous", 120, Kind.POOLED, node_blocks=8, wrap_node=CredulousNode),
        Plan("drill", 200, Kind.POOLED, rate=0.1, without=UNANSWERED, wrap_offering=CredulousOfferer),
    ],
    ids=["peer, one-sided", "peer, two-sided", "node", "offering worker"],
)
def test_one_that_calls_everything_valid_is_found_out(plan: Plan) -> None:
    """Else the drill would prove nothing."""
    assert run_round(plan).wrong_texts
