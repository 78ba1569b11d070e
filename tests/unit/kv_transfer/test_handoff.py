"""A prompt's KV goes from P to D whole, and only when it is right, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

import pytest

from engine.batch import Batch, Runner
from engine.engine import Engine
from engine.errors import RequestTooLong
from engine.fake_runner import FakeModel, FakeRunner
from engine.request import FinishReason, RequestKind
from engine.sampled_token import SampledToken, SamplingFailure
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import ChunkReady, FailureReason, HandoffError, SessionEvent
from tests.unit.kv_transfer.conftest import PairFactory
from tests.unit.kv_transfer.lossy_peer import LossyPeer, twice, without_chunk
from tests.unit.kv_transfer.pair import BLOCK_SIZE, Pair, make_engine, make_request, ticket, transfer_config

PROMPT = list(range(30))  # seven blocks and a half, in four chunks
EXPECTED = FakeRunner.expected(PROMPT, 4)


OTHER_SESSION = b"another session."


class FailsAtTheEnd:
    """Once, when a batch of several requests is all written."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.num_failed = 0

    def run(self, batch: Batch) -> Sequence[SampledToken | SamplingFailure]:
        tokens = self._runner.run(batch)
        if len(batch.works) > 1 and self.num_failed == 0:
            self.num_failed += 1
            raise RuntimeError("a bit flipped")
        return tokens


def prefill_two(leases: LeaseTable) -> None:
    """The prompt of the default ticket and another one, in one batch."""
    for session, prompt in ((ticket(), PROMPT[:8]), (ticket(session=OTHER_SESSION), PROMPT[8:16])):
        request = make_request(f"p-{session}", prompt, RequestKind.PREFILL)
        leases.prefill(request, session, monotonic())


class BrokenRunner:
    def run(self, batch: Batch) -> list[SampledToken]:
        raise RuntimeError("the model is broken")


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 24, 61])
async def test_the_tokens_are_those_of_a_single_worker(pair: Pair, length: int) -> None:
    prompt = list(range(length))
    assert await pair.serve(prompt, ticket(), max_tokens=6) == FakeRunner.expected(prompt, 6)
    await pair.check_nothing_is_held()


async def test_the_decode_worker_computes_no_token_of_the_prompt(pair: Pair) -> None:
    num_prefill_tokens = []
    pair.decode.thread.subscribe(lambda result: num_prefill_tokens.append(result.num_prefill_tokens))
    assert await pair.serve(PROMPT, ticket()) == EXPECTED
    assert sum(num_prefill_tokens) == 0


async def test_what_the_decode_worker_has_is_not_moved_again(pair: Pair) -> None:
    await pair.serve(PROMPT, ticket())
    await pair.start_prefill(PROMPT, ticket(session=b"another session."))
    request = await pair.reserve(PROMPT)
    result = await pair.hand_off(request, ticket(session=b"another session."))
    assert result.received_tokens == len(PROMPT) % BLOCK_SIZE
    assert result.received_bytes == pair.decode.ring.block_bytes
    assert result.prefill_cached_tokens == len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE
    assert await pair.finish(request, result) == EXPECTED


@pytest.mark.parametrize("times", range(3))
async def test_a_prompt_of_whole_blocks_can_be_served_again_and_again(pair: Pair, times: int) -> None:
    prompt = list(range(4 * BLOCK_SIZE))
    for i in range(times + 1):
        assert await pair.serve(prompt, ticket(session=bytes([i] * 16))) == FakeRunner.expected(prompt, 4)
    await pair.check_nothing_is_held()


async def test_reading_overlaps_with_prefill(new_pair: PairFactory) -> None:
    pair = new_pair(prefill=make_engine(FakeModel(seconds_per_step=0.01)))
    await pair.start_prefill(PROMPT, ticket())
    request = await pair.reserve(PROMPT)
    result = await pair.hand_off(request, ticket())
    assert result.overlap_ratio is not None
    assert result.overlap_ratio > 0
    assert set(result.stages) == {"handshake", "wait_ready", "transfer", "validate"}
    assert result.transfer_s > result.stages["transfer"]


async def test_layers_of_a_prompt_in_one_chunk_are_read_while_the_others_are_computed(new_pair: PairFactory) -> None:
    model = FakeModel(num_layers=8, seconds_per_step=0.1)
    config = transfer_config(staging_slot_bytes=2 * model.layout(BLOCK_SIZE).block_bytes)
    pair = new_pair(config, make_engine(model, prefill_chunk_size=64), make_engine(model))
    request = await pair.reserve(PROMPT)
    handoff = asyncio.create_task(pair.hand_off(request, ticket()))
    await pair.until(lambda: pair.leases.counts().active == 1)
    await pair.start_prefill(PROMPT, ticket())
    result = await handoff
    assert len(result.reads) >= 4
    assert result.overlap_ratio is not None
    assert result.overlap_ratio > 0.5
    assert result.received_bytes == 8 * pair.decode.ring.block_bytes
    assert await pair.finish(request, result) == EXPECTED
    await pair.check_nothing_is_held()


async def test_one_layer_range_is_all_layers_at_the_end(new_pair: PairFactory) -> None:
    pair = new_pair(transfer_config(layer_ranges=1), prefill=make_engine(FakeModel(seconds_per_step=0.01)))
    peer = LossyPeer(pair.peer)
    layers: list[range | None] = []

    def note(event: SessionEvent) -> list[SessionEvent]:
        if isinstance(event, ChunkReady):
            layers.append(event.layers)
        return [event]

    peer.changes.append(note)
    pair.link = pair.new_link(peer)
    assert await pair.serve(PROMPT, ticket()) == EXPECTED
    assert set(layers) == {None}


async def test_an_open_that_comes_before_its_prefill_waits_for_it(pair: Pair) -> None:
    request = await pair.reserve(PROMPT)
    handoff = asyncio.create_task(pair.hand_off(request, ticket()))
    await pair.until(lambda: pair.leases.counts().active == 1)
    await pair.start_prefill(PROMPT, ticket())
    assert await pair.finish(request, await handoff) == EXPECTED


async def test_many_at_once_share_a_ring_of_one_slot(new_pair: PairFactory) -> None:
    """Field report D09."""
    config = transfer_config(staging_slots=1, max_quarantined_slots=0)
    pair = new_pair(config, make_engine(num_blocks=512), make_engine(num_blocks=512))
    prompts = [[i, *PROMPT] for i in range(32)]
    served = [pair.serve(prompt, ticket(session=bytes([i] * 16))) for i, prompt in enumerate(prompts)]
    assert await asyncio.gather(*served) == [FakeRunner.expected(prompt, 4) for prompt in prompts]
    await pair.check_nothing_is_held()


class TestAFirstTokenThatEndsTheRequest:
    async def test_needs_no_kv_when_only_one_token_is_wanted(self, pair: Pair) -> None:
        await pair.start_prefill(PROMPT, ticket(), max_tokens=1)
        request = await pair.reserve(PROMPT, max_tokens=1)
        result = await pair.hand_off(request, ticket())
        assert (result.first_token.token_id, result.finish_reason) == (EXPECTED[0], FinishReason.LENGTH)
        assert not result.kv_valid
        assert pair.decode.local.num_reads == 0
        await pair.drop(request)
        await pair.check_nothing_is_held()

    async def test_is_returned_without_waiting_for_reads(self, pair: Pair) -> None:
        pair.decode.local.stall()
        stop = frozenset({EXPECTED[0]})
        await pair.start_prefill(PROMPT, ticket(), stop_token_ids=stop)
        request = await pair.reserve(PROMPT, stop_token_ids=stop)
        result = await pair.hand_off(request, ticket())
        assert (result.first_token.token_id, result.finish_reason) == (EXPECTED[0], FinishReason.STOP)
        assert not result.kv_valid
        pair.decode.local.resume()
        await pair.drop(request)
        await pair.check_nothing_is_held()


class TestABadWire:
    @pytest.fixture
    def peer(self, pair: Pair) -> LossyPeer:
        peer = LossyPeer(pair.peer)
        pair.link = pair.new_link(peer)
        return peer

    async def test_repeats_every_event(self, pair: Pair, peer: LossyPeer) -> None:
        peer.changes.append(twice)
        assert await pair.serve(PROMPT, ticket()) == EXPECTED
        assert peer.num_opens == 1
        await pair.check_nothing_is_held()

    @pytest.mark.parametrize("sequence", range(3))
    async def test_loses_a_chunk_so_the_session_is_opened_again(
        self, pair: Pair, peer: LossyPeer, sequence: int
    ) -> None:
        request = await pair.reserve(PROMPT)
        handoff = asyncio.create_task(pair.hand_off(request, ticket()))
        peer.changes.append(without_chunk(sequence))
        await pair.until(lambda: pair.leases.counts().active == 1)
        await pair.start_prefill(PROMPT, ticket())
        assert await pair.finish(request, await handoff) == EXPECTED
        assert peer.num_opens == 2
        await pair.check_nothing_is_held()

    @pytest.mark.parametrize("num_events", range(4))
    async def test_breaks_the_stream_and_nothing_is_read_twice(
        self, pair: Pair, peer: LossyPeer, num_events: int
    ) -> None:
        request = await pair.reserve(PROMPT)
        handoff = asyncio.create_task(pair.hand_off(request, ticket()))
        peer.breaks_after.extend([num_events, num_events])
        await pair.until(lambda: pair.leases.counts().active == 1)
        await pair.start_prefill(PROMPT, ticket())
        result = await handoff
        assert result.received_bytes == 8 * pair.decode.ring.block_bytes
        assert await pair.finish(request, result) == EXPECTED
        await pair.check_nothing_is_held()

    async def test_loses_a_commit_and_two_verdicts(self, pair: Pair, peer: LossyPeer) -> None:
        peer.lose_commits, peer.lose_verdicts = 1, 2
        assert await pair.serve(PROMPT, ticket()) == EXPECTED
        assert peer.num_commits == 4
        await pair.check_nothing_is_held()

    async def test_loses_every_verdict(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(verdict_timeout_s=0.2))
        peer = LossyPeer(pair.peer)
        peer.lose_verdicts = 1000
        await check_fails(pair, FailureReason.VERDICT_TIMEOUT, peer)

    async def test_loses_the_handshake(self, pair: Pair, peer: LossyPeer) -> None:
        peer.lose_handshakes = 1
        await check_fails(pair, FailureReason.PEER_UNAVAILABLE, peer)

    async def test_breaks_every_stream(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(silent_peer_s=0.3, renew_every_s=0.1))
        peer = LossyPeer(pair.peer)
        peer.breaks_after.extend([0] * 100)
        await check_fails(pair, FailureReason.PEER_SILENT, peer)
        assert peer.num_opens > 1


class TestASilentPeer:
    async def test_does_not_answer_the_handshake(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(handshake_timeout_s=0.05))
        peer = LossyPeer(pair.peer)
        peer.silent.set()
        await check_fails(pair, FailureReason.HANDSHAKE_TIMEOUT, peer)

    async def test_stops_while_it_prefills(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(silent_peer_s=0.2, renew_every_s=0.05))
        peer = LossyPeer(pair.peer)
        link = pair.new_link(peer)
        request = await pair.reserve(PROMPT)
        handoff = asyncio.create_task(pair.hand_off(request, ticket(), link))
        await pair.until(lambda: pair.leases.counts().active == 1)
        peer.silent.set()
        with pytest.raises(HandoffError) as caught:
            await handoff
        assert caught.value.reason is FailureReason.PEER_SILENT
        await pair.drop(request)
        peer.silent.clear()
        await pair.peer.close(ticket())
        await pair.check_nothing_is_held()

    async def test_gives_no_verdict(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(verdict_timeout_s=0.1))
        peer = LossyPeer(pair.peer)

        async def fall_silent() -> None:
            await asyncio.Event().wait()

        peer.before_commit = fall_silent
        await check_fails(pair, FailureReason.VERDICT_TIMEOUT, peer)


class TestAFailedTransfer:
    @pytest.mark.parametrize("num_before", range(4))
    async def test_ends_the_handoff_and_the_next_one_connects_anew(self, pair: Pair, num_before: int) -> None:
        for _ in range(num_before):
            pair.decode.local.pass_next()
        pair.decode.local.fail_next("the link broke")
        await check_fails(pair, FailureReason.TRANSFER_FAILED)
        assert await pair.serve(PROMPT, ticket(2)) == EXPECTED

    async def test_that_never_ends_costs_its_slots_until_it_does(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(transfer_timeout_s=0.05, min_bytes_per_s=1e9, in_doubt_s=0))
        pair.decode.local.stall()
        await pair.start_prefill(PROMPT, ticket())
        request = await pair.reserve(PROMPT)
        with pytest.raises(HandoffError) as caught:
            await pair.hand_off(request, ticket())
        assert caught.value.reason is FailureReason.TRANSFER_TIMEOUT
        await pair.drop(request)
        assert pair.decode.ring.counts().quarantined > 0
        pair.decode.local.stop_stalling()  # new reads run; the old ones are still on their way
        assert await pair.serve(PROMPT, ticket(2)) == EXPECTED
        before = pair.decode.engine.cache.tensor.clone()
        pair.decode.local.resume()
        await pair.check_nothing_is_held()
        assert before.equal(pair.decode.engine.cache.tensor)

    async def test_that_never_ends_takes_no_more_slots_from_the_next_hand_offs(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(transfer_timeout_s=0.05, min_bytes_per_s=1e9))
        pair.decode.local.stall()
        await check_fails(pair, FailureReason.TRANSFER_TIMEOUT, check_held=False)
        free = pair.decode.ring.counts().free
        await check_fails(pair, FailureReason.TRANSFER_FAILED, attempt=2, check_held=False)
        assert pair.decode.ring.counts().free == free
        pair.decode.local.resume()
        await pair.until(lambda: pair.decode.ring.counts().quarantined == 0)
        assert await pair.serve(PROMPT, ticket(3)) == EXPECTED
        await pair.check_nothing_is_held()

    async def test_too_many_in_doubt_are_reported_once(self, new_pair: PairFactory) -> None:
        limits = {"max_quarantined_slots": 1, "in_doubt_s": 0}
        config = transfer_config(transfer_timeout_s=0.05, min_bytes_per_s=1e9, **limits)
        pair = new_pair(config)
        pair.decode.local.stall()
        await check_fails(pair, FailureReason.TRANSFER_TIMEOUT, check_held=False)
        await check_fails(pair, FailureReason.TRANSFER_TIMEOUT, attempt=2, check_held=False)
        assert len(pair.exhausted) == 1
        assert "max_quarantined_slots" in pair.exhausted[0]

    async def test_without_a_free_slot_ends_in_time(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(reserve_timeout_s=0.05))
        slots = [await pair.decode.ring.acquire(1.0) for _ in range(pair.config.staging_slots)]
        await check_fails(pair, FailureReason.STAGING_TIMEOUT, check_held=False)
        for slot in slots:
            pair.decode.ring.release(slot)
        await pair.check_nothing_is_held()


class TestHandOffsThatWaitForSlots:
    async def order(self, pair: Pair, priorities: Sequence[int]) -> list[int]:
        """In which hand-offs that began in this order, each with one block to read, come to their end."""
        slots = [await pair.decode.ring.acquire(1.0) for _ in range(pair.config.staging_slots)]
        ended: list[int] = []

        async def hand_off(number: int) -> None:
            session = ticket(session=bytes([number] * 16))
            await pair.start_prefill([number, 1, 2], session)
            request = await pair.reserve([number, 1, 2], priority=priorities[number])
            await pair.hand_off(request, session)
            ended.append(number)
            await pair.drop(request)

        async with asyncio.TaskGroup() as group:
            for number in range(len(priorities)):
                group.create_task(hand_off(number))
                await pair.until(lambda number=number: pair.decode.ring.num_waiting == number + 1)  # type: ignore[misc]
            pair.decode.ring.release(slots[0])  # it goes from hand to hand
        for slot in slots[1:]:
            pair.decode.ring.release(slot)
        await pair.check_nothing_is_held()
        return ended

    async def test_go_by_priority_then_by_arrival(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(layer_ranges=1, staging_slots=5, max_quarantined_slots=4))
        assert await self.order(pair, [21, 0, -1, 0]) == [2, 1, 3, 0]


class TestNothingIsBelievedUntilThePeerSaysValid:
    async def test_a_session_that_ended_before_the_commit_is_stale(self, pair: Pair) -> None:
        peer = LossyPeer(pair.peer)

        async def abort() -> None:
            await pair.abort_prefill(ticket())

        peer.before_commit = abort
        await check_fails(pair, FailureReason.STALE, peer)

    async def test_received_blocks_are_not_shared_before(self, pair: Pair) -> None:
        peer = LossyPeer(pair.peer)
        found = []

        async def look() -> None:
            found.append(await pair.on_decode(lambda engine: engine.pool.lookup(request.block_hashes)))

        peer.before_commit = look
        await pair.start_prefill(PROMPT, ticket())
        request = await pair.reserve(PROMPT)
        await pair.hand_off(request, ticket(), pair.new_link(peer))
        assert found == [[]]
        assert request.num_computed == 0

    async def test_another_prompt_is_refused(self, pair: Pair) -> None:
        await pair.start_prefill([*PROMPT[:-1], 99], ticket())
        await check_fails(pair, FailureReason.MISMATCH, prefill=False)

    async def test_a_longer_prompt_is_refused(self, pair: Pair) -> None:
        await pair.start_prefill([*PROMPT, 99], ticket())
        await check_fails(pair, FailureReason.MISMATCH, prefill=False)

    async def test_another_tenants_prompt_is_refused(self, pair: Pair) -> None:
        await pair.start_prefill(PROMPT, ticket(), cache_salt="another")
        await check_fails(pair, FailureReason.MISMATCH, prefill=False)


class TestTheOtherSideGivesUp:
    async def test_the_prefill_is_aborted(self, pair: Pair) -> None:
        request = await pair.reserve(PROMPT)
        handoff = asyncio.create_task(pair.hand_off(request, ticket()))
        await pair.until(lambda: pair.leases.counts().active == 1)
        await pair.abort_prefill(ticket())
        with pytest.raises(HandoffError) as caught:
            await handoff
        assert caught.value.reason is FailureReason.ABORTED
        await pair.drop(request)
        await pair.check_nothing_is_held()

    async def test_no_prefill_follows_the_open(self, new_pair: PairFactory) -> None:
        pair = new_pair(transfer_config(open_timeout_s=0.05))
        await check_fails(pair, FailureReason.LEASE_EXPIRED, prefill=False)

    async def test_the_model_fails_on_the_prompt(self, new_pair: PairFactory) -> None:
        engine = make_engine()
        pair = new_pair(prefill=Engine(engine.config, engine.model, BrokenRunner(), engine.cache))
        request = await pair.reserve(PROMPT)
        handoff = asyncio.create_task(pair.hand_off(request, ticket()))
        await pair.until(lambda: pair.leases.counts().active == 1)
        await pair.start_prefill(PROMPT, ticket())
        with pytest.raises(HandoffError) as caught:
            await handoff
        assert caught.value.reason is FailureReason.PREFILL_FAILED
        await pair.drop(request)
        await pair.check_nothing_is_held()

    async def test_the_model_computes_again_what_was_announced(self, new_pair: PairFactory) -> None:
        engine = make_engine(FakeModel(seconds_per_step=0.02))
        runner = FailsAtTheEnd(engine.runner)
        pair = new_pair(prefill=Engine(engine.config, engine.model, runner, engine.cache))
        request = await pair.reserve(PROMPT[:8])
        handoff = asyncio.create_task(pair.hand_off(request, ticket()))
        await pair.until(lambda: pair.leases.counts().active == 1)
        await asyncio.wrap_future(pair.prefill.thread.call(lambda _: prefill_two(pair.leases)))
        with pytest.raises(HandoffError) as caught:
            await handoff
        assert caught.value.reason is FailureReason.PREFILL_FAILED
        assert runner.num_failed == 1
        await pair.drop(request)
        await pair.abort_prefill(ticket(session=OTHER_SESSION))
        await pair.check_nothing_is_held()

    async def test_the_prompt_can_never_fit_there(self, new_pair: PairFactory) -> None:
        pair = new_pair(prefill=make_engine(num_blocks=4))
        request = await pair.reserve(PROMPT)
        handoff = asyncio.create_task(pair.hand_off(request, ticket()))
        await pair.until(lambda: pair.leases.counts().active == 1)
        with pytest.raises(RequestTooLong):
            await pair.start_prefill(PROMPT, ticket())
        with pytest.raises(HandoffError) as caught:
            await handoff
        assert caught.value.reason is FailureReason.PREFILL_FAILED
        await pair.drop(request)
        await pair.check_nothing_is_held()

    async def test_the_request_is_aborted_here_while_kv_arrives(self, pair: Pair) -> None:
        pair.decode.local.stall()
        await pair.start_prefill(PROMPT, ticket())
        request = await pair.reserve(PROMPT)
        handoff = asyncio.create_task(pair.hand_off(request, ticket()))
        await pair.until(lambda: pair.decode.local.num_reads > 0)
        await pair.drop(request)
        pair.decode.local.resume()
        with pytest.raises(HandoffError) as caught:
            await handoff
        assert caught.value.reason is FailureReason.ABORTED
        await pair.check_nothing_is_held()

    async def test_the_requests_deadline_passes(self, pair: Pair) -> None:
        request = await pair.reserve(PROMPT)
        with pytest.raises(HandoffError) as caught:
            await pair.hand_off(request, ticket(), timeout_s=0.05)
        assert caught.value.reason is FailureReason.DEADLINE
        await pair.drop(request)
        await pair.check_nothing_is_held()

    async def test_this_engine_has_stopped(self, pair: Pair) -> None:
        await pair.start_prefill(PROMPT, ticket())
        request = await pair.reserve(PROMPT)
        await asyncio.to_thread(pair.decode.thread.stop)
        with pytest.raises(HandoffError) as caught:
            await pair.hand_off(request, ticket())
        assert caught.value.reason is FailureReason.INTERNAL


async def test_a_higher_attempt_takes_over_while_the_lower_one_stalls(pair: Pair) -> None:
    pair.decode.local.stall()
    await pair.start_prefill(PROMPT, ticket(1))
    first = await pair.reserve(PROMPT)
    stalled = asyncio.create_task(pair.hand_off(first, ticket(1)))
    await pair.until(lambda: pair.decode.local.num_reads > 0)
    pair.decode.local.stop_stalling()
    assert await pair.serve(PROMPT, ticket(2)) == EXPECTED
    pair.decode.local.resume()
    with pytest.raises(HandoffError) as caught:
        await stalled
    assert caught.value.reason in (FailureReason.SUPERSEDED, FailureReason.STALE)
    await pair.drop(first)
    await pair.check_nothing_is_held()


@pytest.mark.parametrize("num_turns", range(0, 60, 3))
async def test_a_cancel_at_any_point_leaves_nothing_behind(new_pair: PairFactory, num_turns: int) -> None:
    pair = new_pair(prefill=make_engine(FakeModel(seconds_per_step=0.001)))
    await pair.start_prefill(PROMPT, ticket())
    request = await pair.reserve(PROMPT)
    handoff = asyncio.create_task(pair.hand_off(request, ticket()))
    for _ in range(num_turns):
        await pair.on_decode(lambda _: None)
    handoff.cancel()
    await asyncio.wait([handoff])
    await pair.drop(request)
    await pair.abort_prefill(ticket())
    await pair.check_nothing_is_held()
    assert await pair.serve(PROMPT, ticket(2)) == EXPECTED


async def check_fails(
    pair: Pair,
    reason: FailureReason,
    peer: LossyPeer | None = None,
    attempt: int = 1,
    prefill: bool = True,
    check_held: bool = True,
) -> None:
    """One hand-off that must fail for this reason, and afterwards hold nothing."""
    if prefill:
        await pair.start_prefill(PROMPT, ticket(attempt))
    request = await pair.reserve(PROMPT)
    link = pair.new_link(peer) if peer is not None else pair.link
    with pytest.raises(HandoffError) as caught:
        await pair.hand_off(request, ticket(attempt), link)
    assert caught.value.reason is reason, caught.value
    await pair.drop(request)
    await pair.abort_prefill(ticket(attempt))
    await link.close()
    if check_held:
        await pair.check_nothing_is_held()
