"""What P says to each message, at each moment of a session."""

from __future__ import annotations

import pytest

from engine.batch import Work
from engine.engine import Engine
from engine.errors import RequestTooLong
from engine.request import Request, RequestKind, RequestState
from kv_transfer.config import TransferConfig
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import (
    BlockRef,
    ChunkReady,
    FailureReason,
    HandoffError,
    PrefillDone,
    SessionEnded,
    SessionEvent,
    Verdict,
)
from tests.unit.kv_transfer.pair import make_engine, make_request, ticket

PROMPT = list(range(18))  # four blocks and a half; chunks of two blocks
CONFIG = TransferConfig()


class Prefiller:
    """Maintains a lease table and its engine, stepped by hand at a time that the test says."""

    def __init__(self, config: TransferConfig = CONFIG, **fields: int) -> None:
        self.engine: Engine = make_engine(None, **fields)
        self.awake: list[bool] = []
        self.table = LeaseTable(self.engine, config, self.awake.append)
        self.events: list[SessionEvent] = []
        self.now = 0.0

    def prefill(self, attempt: int = 1, prompt: list[int] = PROMPT, request_id: str = "") -> Request:
        request = make_request(request_id or f"r{attempt}", prompt, RequestKind.PREFILL)
        self.table.prefill(request, ticket(attempt), self.now)
        return request

    def open(self, attempt: int = 1, have_tokens: int = 0) -> list[SessionEvent]:
        """The events that this opening hears, now and later."""
        self.events = []
        self.table.open(ticket(attempt), have_tokens, self.events.append, self.now)
        return self.events

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.engine.step()
            self.advance(0.0)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.table.advance(self.now)
        self.engine.check_integrity()

    def write_layers(self, num_layers: int) -> None:
        """As the model says it while it computes what remains of every prompt."""
        works = [Work(r, r.num_computed, r.num_uncomputed, sample=True) for r in self.engine.requests.values()]
        self.table.layers_written(works, num_layers, self.now)

    def run(self) -> None:
        self.step(6)

    def commit(self, events: list[SessionEvent], attempt: int = 1) -> Verdict:
        return self.table.commit(ticket(attempt), refs(events), self.now)

    def is_clean(self) -> bool:
        counts = self.engine.pool.counts()
        return counts.used + counts.leased == 0 and not self.engine.requests and self.table.counts().active == 0


@pytest.fixture
def p() -> Prefiller:
    return Prefiller()


def refs(events: list[SessionEvent]) -> list[BlockRef]:
    chunks = [e.tail if isinstance(e, PrefillDone) else e for e in events]
    return [ref for chunk in chunks if isinstance(chunk, ChunkReady) for ref in chunk.blocks]


def ranges(events: list[SessionEvent]) -> list[tuple[int, int]]:
    chunks = [e.tail if isinstance(e, PrefillDone) else e for e in events]
    return [(chunk.start, chunk.end) for chunk in chunks if isinstance(chunk, ChunkReady)]


def layers(events: list[SessionEvent]) -> list[range | None]:
    chunks = [e.tail if isinstance(e, PrefillDone) else e for e in events]
    return [chunk.layers for chunk in chunks if isinstance(chunk, ChunkReady)]


def ended(events: list[SessionEvent]) -> FailureReason | None:
    last = events[-1] if events else None
    return last.reason if isinstance(last, SessionEnded) else None


class TestAnnouncing:
    def test_full_blocks_are_announced_as_they_are_computed_and_the_tail_with_the_first_token(
        self, p: Prefiller
    ) -> None:
        request = p.prefill()
        events = p.open()
        assert events == []
        p.step()
        assert ranges(events) == [(0, 8)]
        p.run()
        assert ranges(events) == [(0, 8), (8, 16), (16, 18)]
        done = events[-1]
        assert isinstance(done, PrefillDone)
        assert (done.num_tokens, done.first_token.token_id) == (len(PROMPT), request.token_ids[-1])
        assert [ref.block for ref in refs(events)] == request.blocks
        assert [e.tail.sequence if isinstance(e, PrefillDone) else e.sequence for e in events] == [0, 1, 2]  # type: ignore[union-attr]

    def test_a_chunk_that_ends_inside_a_block_leaves_that_block_out(self) -> None:
        p = Prefiller(prefill_chunk_size=7)
        p.prefill()
        events = p.open()
        p.run()
        assert ranges(events) == [(0, 4), (4, 12), (12, 16), (16, 18)]

    def test_a_prompt_of_whole_blocks_has_an_empty_tail(self, p: Prefiller) -> None:
        p.prefill(prompt=PROMPT[:8])
        events = p.open()
        p.run()
        assert ranges(events) == [(0, 8), (8, 8)]

    def test_what_the_reader_has_is_left_out(self, p: Prefiller) -> None:
        request = p.prefill()
        events = p.open(have_tokens=8)
        p.run()
        assert ranges(events) == [(8, 16), (16, 18)]
        assert [ref.block for ref in refs(events)] == request.blocks[2:]
        assert p.commit(events) is Verdict.VALID

    def test_a_reader_that_has_everything_is_told_the_first_token(self, p: Prefiller) -> None:
        p.prefill(prompt=PROMPT[:8])
        events = p.open(have_tokens=8)
        p.run()
        assert ranges(events) == [(8, 8)]
        assert p.commit(events) is Verdict.VALID

    def test_prefix_hits_are_announced_at_once(self, p: Prefiller) -> None:
        p.prefill()
        p.run()
        p.table.close(ticket(1), p.now)
        p.prefill(2)
        events = p.open(2)
        p.step()
        assert ranges(events) == [(0, 16), (16, 18)]
        assert isinstance(events[-1], PrefillDone)
        assert events[-1].cached_tokens == 16

    def test_layers_of_the_last_chunk_are_announced_as_they_are_written(self, p: Prefiller) -> None:
        request = p.prefill()
        events = p.open()
        p.step(2)
        p.write_layers(1)
        assert layers(events) == [None, None, range(1)]
        assert [ref.block for ref in refs(events)] == request.blocks
        p.write_layers(2)
        p.step()
        assert ranges(events) == [(0, 8), (8, 16), (16, 18), (16, 18), (18, 18)]
        assert layers(events) == [None, None, range(1), range(1, 2), None]
        assert p.commit(events[:3]) is Verdict.VALID

    def test_layers_that_were_not_told_come_with_the_first_token(self, p: Prefiller) -> None:
        p.prefill(prompt=PROMPT[:8])
        events = p.open()
        p.engine.schedule()
        p.write_layers(1)
        p.advance(0.1)  # a tick
        p.step()
        assert layers(events) == [range(1), range(1, 2)]
        assert isinstance(events[-1], PrefillDone)

    def test_who_opens_while_the_last_chunk_is_computed_hears_of_its_layers(self, p: Prefiller) -> None:
        p.prefill()
        p.step(2)
        p.write_layers(1)
        events = p.open()
        assert ranges(events) == [(0, 16), (16, 18)]
        assert layers(p.open()) == [None, range(1)]
        assert ended(events) is FailureReason.SUPERSEDED

    def test_layers_of_a_step_that_is_over_are_not_announced(self, p: Prefiller) -> None:
        p.prefill()
        p.step(2)
        p.write_layers(1)
        p.advance(0.1)
        assert layers(p.open()) == [None]

    def test_a_reader_that_has_everything_hears_of_no_layers(self, p: Prefiller) -> None:
        p.prefill(prompt=PROMPT[:8])
        events = p.open(have_tokens=8)
        p.engine.schedule()
        p.write_layers(1)
        assert events == []

    def test_layers_that_are_written_again_end_the_session(self, p: Prefiller) -> None:
        p.prefill(prompt=PROMPT[:8])
        p.open()
        p.engine.schedule()
        p.write_layers(1)
        events = p.open()
        p.write_layers(0)
        assert ended(events) is FailureReason.PREFILL_FAILED
        assert p.is_clean()

    def test_a_step_that_begins_anew_before_its_layers_were_told_ends_nothing(self, p: Prefiller) -> None:
        p.prefill()
        events = p.open()
        p.step(2)
        p.write_layers(0)
        p.step()
        assert layers(events) == [None, None, None]

    def test_opening_a_finished_prefill_tells_everything(self, p: Prefiller) -> None:
        p.prefill()
        p.run()
        assert ranges(p.open()) == [(0, 16), (16, 18)]

    def test_opening_again_tells_everything_again_and_only_to_the_new_listener(self, p: Prefiller) -> None:
        p.prefill()
        first = p.open()
        p.step()
        again = p.open()
        p.run()
        assert ranges(first) == [(0, 8)]
        assert ended(first) is FailureReason.SUPERSEDED
        assert ranges(again) == [(0, 8), (8, 16), (16, 18)]
        assert p.commit(again) is Verdict.VALID
        assert p.is_clean()

    @pytest.mark.parametrize("have_tokens", [3, len(PROMPT) + 2])
    def test_a_reader_that_has_something_else_is_refused(self, p: Prefiller, have_tokens: int) -> None:
        p.prefill()
        assert ended(p.open(have_tokens=have_tokens)) is FailureReason.MISMATCH
        assert p.is_clean()


class TestBeforeItIsOpened:
    def test_an_open_before_its_prefill_waits_for_it(self, p: Prefiller) -> None:
        events = p.open()
        p.advance(CONFIG.open_timeout_s / 2)
        p.prefill()
        p.run()
        assert p.commit(events) is Verdict.VALID

    def test_an_open_without_a_prefill_ends_by_the_timer_even_if_renewed(self, p: Prefiller) -> None:
        events = p.open()
        p.advance(CONFIG.open_timeout_s / 2)
        assert p.table.renew([ticket()], p.now) == [True]
        p.advance(CONFIG.open_timeout_s / 2)
        assert ended(events) is FailureReason.LEASE_EXPIRED
        assert p.table.counts().num_expired == 1
        with pytest.raises(HandoffError, match="gone"):
            p.prefill()

    def test_a_prefill_that_nobody_opens_is_released_by_the_timer(self, p: Prefiller) -> None:
        p.prefill()
        p.run()
        p.advance(CONFIG.open_timeout_s - 0.1)
        assert not p.is_clean()
        p.advance(0.1)
        assert p.is_clean()
        assert ended(p.open()) is FailureReason.GONE

    def test_a_prefill_that_is_queued_for_long_is_not(self, p: Prefiller) -> None:
        p.prefill()
        p.advance(1000.0)
        p.run()
        assert p.commit(p.open()) is Verdict.VALID

    def test_a_prefill_may_be_preempted_and_is_computed_again(self) -> None:
        p = Prefiller(num_blocks=6)
        request = p.prefill()
        p.run()
        other = make_request("other", list(range(50, 70)), RequestKind.PREFILL)
        p.table.prefill(other, ticket(session=b"another session."), p.now)
        p.table.open(ticket(session=b"another session."), 0, lambda _: None, p.now)
        p.step()
        assert request.state is RequestState.WAITING
        p.advance(CONFIG.open_timeout_s * 2)
        assert request.state is RequestState.WAITING
        events = p.open()
        p.step()
        assert events == []
        p.table.close(ticket(session=b"another session."), p.now)
        p.run()
        assert p.commit(events) is Verdict.VALID

    def test_an_opened_prefill_is_never_preempted(self) -> None:
        p = Prefiller(num_blocks=6)
        request = p.prefill()
        events = p.open()
        p.run()
        p.table.prefill(
            make_request("other", list(range(50, 70)), RequestKind.PREFILL),
            ticket(session=b"another session."),
            p.now,
        )
        p.table.open(ticket(session=b"another session."), 0, lambda _: None, p.now)
        p.step(3)
        assert request.state is RequestState.HELD
        assert p.commit(events) is Verdict.VALID

    def test_a_prompt_that_can_never_fit_ends_the_session(self) -> None:
        p = Prefiller(num_blocks=2)
        events = p.open()
        with pytest.raises(RequestTooLong):
            p.prefill()
        assert ended(events) is FailureReason.PREFILL_FAILED
        assert p.is_clean()


class TestTheLease:
    def test_ends_by_the_timer_alone(self, p: Prefiller) -> None:
        p.prefill()
        events = p.open()
        p.run()
        p.advance(CONFIG.lease_s - 0.1)
        assert p.engine.pool.counts().leased == 5
        p.advance(0.1)
        assert ended(events) is FailureReason.LEASE_EXPIRED
        assert p.is_clean()
        assert p.engine.pool.counts().cached == 4
        assert p.commit(events) is Verdict.STALE

    def test_ends_also_in_the_middle_of_the_prefill(self, p: Prefiller) -> None:
        p.prefill()
        events = p.open()
        p.step()
        p.advance(CONFIG.lease_s)
        assert ended(events) is FailureReason.LEASE_EXPIRED
        assert p.is_clean()

    def test_goes_on_while_it_is_renewed(self, p: Prefiller) -> None:
        p.prefill()
        events = p.open()
        p.run()
        for _ in range(10):
            p.advance(CONFIG.lease_s - 0.1)
            assert p.table.renew([ticket()], p.now) == [True]
        assert p.commit(events) is Verdict.VALID

    def test_that_has_run_out_is_over_even_before_the_timer_sees_it(self, p: Prefiller) -> None:
        p.prefill()
        events = p.open()
        p.run()
        p.now += CONFIG.lease_s
        assert p.table.renew([ticket()], p.now) == [False]
        assert p.commit(events) is Verdict.STALE

    def test_is_unknown_for_a_session_that_was_not_opened_or_never_was(self, p: Prefiller) -> None:
        p.prefill()
        assert p.table.renew([ticket(), ticket(2), ticket(session=b"another session.")], p.now) == [False] * 3

    def test_keeps_the_transport_awake_while_a_peer_may_read(self, p: Prefiller) -> None:
        p.prefill()
        assert p.awake == []
        events = p.open()
        p.run()
        assert p.awake == [True]
        p.commit(events)
        p.advance(0.0)
        assert p.awake == [True, False]

    def test_that_ran_out_keeps_it_awake_for_the_late_reads(self, p: Prefiller) -> None:
        p.prefill()
        p.open()
        p.advance(CONFIG.lease_s)
        p.advance(CONFIG.in_doubt_s - 1)
        assert p.awake == [True]
        p.advance(1)
        assert p.awake == [True, False]


class TestTheVerdict:
    @pytest.fixture
    def events(self, p: Prefiller) -> list[SessionEvent]:
        p.prefill()
        events = p.open()
        p.run()
        return events

    def test_is_the_same_when_asked_again(self, p: Prefiller, events: list[SessionEvent]) -> None:
        assert [p.commit(events) for _ in range(3)] == [Verdict.VALID] * 3
        assert p.is_clean()
        assert p.table.counts().num_stale == 0

    def test_stays_stale_when_asked_again(self, p: Prefiller, events: list[SessionEvent]) -> None:
        assert p.table.commit(ticket(), refs(events)[1:], p.now) is Verdict.STALE
        assert p.commit(events) is Verdict.STALE
        assert p.table.counts().num_stale == 2
        assert p.is_clean()

    @pytest.mark.parametrize("wrong", ["generation", "block", "order", "fewer", "more"])
    def test_is_stale_for_anything_but_the_blocks_announced(
        self, p: Prefiller, events: list[SessionEvent], wrong: str
    ) -> None:
        right = refs(events)
        blocks = {
            "generation": [*right[:-1], BlockRef(right[-1].block, right[-1].generation + 1)],
            "block": [*right[:-1], BlockRef(right[-1].block + 1, right[-1].generation)],
            "order": right[::-1],
            "fewer": right[:-1],
            "more": [*right, BlockRef(60, 0)],
        }[wrong]
        assert p.table.commit(ticket(), blocks, p.now) is Verdict.STALE
        assert p.is_clean()

    def test_is_stale_for_other_blocks_than_those_called_valid(self, p: Prefiller, events: list[SessionEvent]) -> None:
        assert p.commit(events) is Verdict.VALID
        assert p.table.commit(ticket(), refs(events)[1:], p.now) is Verdict.STALE

    def test_is_stale_before_the_prefill_is_done(self, p: Prefiller) -> None:
        p.prefill()
        events = p.open()
        p.step()
        assert p.commit(events) is Verdict.STALE
        assert p.is_clean()

    def test_is_stale_for_a_session_nobody_knows(self, p: Prefiller) -> None:
        assert p.table.commit(ticket(), [], p.now) is Verdict.STALE

    def test_is_stale_once_it_is_forgotten(self, p: Prefiller, events: list[SessionEvent]) -> None:
        assert p.commit(events) is Verdict.VALID
        p.advance(CONFIG.tombstone_s)
        assert p.commit(events) is Verdict.STALE

    def test_is_forgotten_early_when_too_many_sessions_ended(self, caplog: pytest.LogCaptureFixture) -> None:
        p = Prefiller(TransferConfig(max_tombstones=1))
        p.prefill()
        events = p.open()
        p.run()
        assert p.commit(events) is Verdict.VALID
        for i in range(3):
            p.table.close(ticket(session=bytes([i] * 16)), p.now)
        assert p.commit(events) is Verdict.STALE
        assert ["max_tombstones" in record.message for record in caplog.records] == [True]

    def test_is_forgotten_without_a_warning_when_its_time_was_over(self, caplog: pytest.LogCaptureFixture) -> None:
        p = Prefiller(TransferConfig(max_tombstones=1))
        p.table.close(ticket(), p.now)
        p.now += CONFIG.tombstone_s
        p.table.close(ticket(session=b"another session."), p.now)
        assert not caplog.records


class TestAttempts:
    def test_a_higher_prefill_ends_the_lower_attempt(self, p: Prefiller) -> None:
        p.prefill(1, request_id="same")
        events = p.open(1)
        p.step()
        p.prefill(2, request_id="same")
        assert ended(events) is FailureReason.SUPERSEDED
        newer = p.open(2)
        p.run()
        assert p.commit(events, 1) is Verdict.STALE
        assert p.commit(newer, 2) is Verdict.VALID
        assert p.is_clean()

    def test_a_higher_open_ends_the_lower_attempt_too(self, p: Prefiller) -> None:
        p.prefill(1)
        events = p.open(1)
        newer = p.open(2)
        assert ended(events) is FailureReason.SUPERSEDED
        p.prefill(2)
        p.run()
        assert p.commit(newer, 2) is Verdict.VALID

    def test_a_lower_attempt_is_gone(self, p: Prefiller) -> None:
        p.prefill(2)
        assert ended(p.open(1)) is FailureReason.GONE
        with pytest.raises(HandoffError, match="gone"):
            p.prefill(1)
        p.table.close(ticket(1), p.now)
        p.table.abort(ticket(1), p.now)
        assert p.table.renew([ticket(1)], p.now) == [False]
        p.run()
        assert p.commit(p.open(2), 2) is Verdict.VALID

    def test_a_prefill_told_twice_is_computed_once(self, p: Prefiller) -> None:
        p.prefill()
        p.prefill()
        assert len(p.engine.requests) == 1


class TestEnding:
    @pytest.mark.parametrize("num_steps", [0, 1, 6])
    @pytest.mark.parametrize("opened", [False, True])
    def test_an_abort_frees_everything_at_any_moment(self, p: Prefiller, num_steps: int, opened: bool) -> None:
        p.prefill()
        events = p.open() if opened else []
        p.step(num_steps)
        p.table.abort(ticket(), p.now)
        assert p.is_clean()
        assert ended(events) is (FailureReason.ABORTED if opened else None)
        assert ended(p.open()) is FailureReason.GONE

    @pytest.mark.parametrize("end", ["abort", "close"])
    def test_what_comes_after_the_end_is_gone(self, p: Prefiller, end: str) -> None:
        {"abort": p.table.abort, "close": p.table.close}[end](ticket(), p.now)
        with pytest.raises(HandoffError, match="gone"):
            p.prefill()
        assert ended(p.open()) is FailureReason.GONE
        assert p.is_clean()

    def test_closing_twice_is_closing_once(self, p: Prefiller) -> None:
        p.prefill()
        p.open()
        p.table.close(ticket(), p.now)
        p.table.close(ticket(), p.now)
        assert p.is_clean()

    def test_a_request_that_the_engine_ended_ends_its_session(self, p: Prefiller) -> None:
        request = p.prefill()
        events = p.open()
        p.step()
        p.engine.abort(request.request_id)
        assert ended(events) is None
        p.advance(0.0)
        assert ended(events) is FailureReason.PREFILL_FAILED
        assert p.is_clean()

    def test_opening_a_request_that_the_engine_ended_says_so(self, p: Prefiller) -> None:
        request = p.prefill()
        p.engine.abort(request.request_id)
        assert ended(p.open()) is FailureReason.PREFILL_FAILED


def test_a_pool_full_of_abandoned_prompts_empties_by_the_timer_alone() -> None:
    p = Prefiller(num_blocks=20)
    for i in range(4):
        session = ticket(session=bytes([i] * 16))
        p.table.prefill(make_request(f"r{i}", [100 + i, *PROMPT[1:]], RequestKind.PREFILL), session, p.now)
        p.table.open(session, 0, lambda _: None, p.now)
        p.run()
    assert p.engine.pool.num_free == 0
    p.advance(CONFIG.lease_s)
    assert p.engine.pool.num_free == 20
    assert p.table.counts().num_expired == 4
