"""What D makes of P's announcements: each block once, and nothing but this prompt."""

from __future__ import annotations

import pytest

from engine.sampled_token import SampledToken
from kv_transfer.handoff_plan import Announcements, Plan
from kv_transfer.messages import BlockRef, ChunkReady, FailureReason, HandoffError, PrefillDone

SIZE = 4
PLAN = Plan(
    num_tokens=18,
    have_tokens=4,
    block_size=SIZE,
    blocks=(50, 51, 52, 53, 54),
    token_hash=b"hash",
    stop_token_ids=frozenset({7}),
    one_token_left=False,
    order=0.0,
)


def chunk(sequence: int, start: int, end: int, generation: int = 1) -> ChunkReady:
    refs = tuple(BlockRef(i, generation) for i in range(start // SIZE, -(-end // SIZE)))
    return ChunkReady(sequence, start, end, refs)


@pytest.fixture
def announced() -> Announcements:
    announced = Announcements(PLAN)
    announced.restart()
    return announced


def test_the_destination_is_what_the_worker_does_not_have() -> None:
    assert PLAN.num_blocks == 4
    assert PLAN.destination == (51, 52, 53, 54)


def test_chunks_add_up_to_the_prompt(announced: Announcements) -> None:
    chunks = [chunk(0, 4, 12), chunk(1, 12, 16), chunk(2, 16, 18)]
    new = [ref for c in chunks for ref in announced.take(c)]
    assert new == announced.refs == [BlockRef(i, 1) for i in range(1, 5)]
    announced.check_complete()


def test_a_chunk_said_twice_is_new_once(announced: Announcements) -> None:
    announced.take(chunk(0, 4, 12))
    assert announced.take(chunk(0, 4, 12)) == []


def test_a_chunk_that_is_missing_shows_in_the_next_one(announced: Announcements) -> None:
    assert announced.has_gap_before(chunk(1, 12, 16))
    assert not announced.has_gap_before(chunk(0, 4, 12))


def test_after_a_restart_only_what_is_not_known_is_new(announced: Announcements) -> None:
    announced.take(chunk(0, 4, 12))
    announced.restart()
    assert announced.take(chunk(0, 4, 16)) == [BlockRef(3, 1)]
    announced.restart()
    assert announced.take(chunk(0, 4, 8)) == []
    assert announced.take(chunk(1, 8, 18)) == [BlockRef(4, 1)]
    announced.check_complete()


def test_a_restart_with_other_blocks_is_stale(announced: Announcements) -> None:
    announced.take(chunk(0, 4, 12))
    announced.restart()
    with pytest.raises(HandoffError) as caught:
        announced.take(chunk(0, 4, 16, generation=2))
    assert caught.value.reason is FailureReason.STALE


@pytest.mark.parametrize(
    "wrong",
    [
        chunk(0, 0, 8),  # from before what is wanted
        chunk(0, 8, 12),  # leaves something out
        chunk(0, 4, 6),  # ends inside a block, and not at the end
        chunk(0, 4, 24),  # longer than the prompt
        ChunkReady(0, 4, 12, (BlockRef(1, 1),)),  # too few blocks
        ChunkReady(0, 4, 8, (BlockRef(1, 1), BlockRef(2, 1))),  # too many
        ChunkReady(0, 4, 0, ()),
    ],
)
def test_a_chunk_that_cannot_follow_is_refused(announced: Announcements, wrong: ChunkReady) -> None:
    with pytest.raises(HandoffError) as caught:
        announced.take(wrong)
    assert caught.value.reason is FailureReason.MISMATCH


def test_less_than_the_prompt_is_not_complete(announced: Announcements) -> None:
    announced.take(chunk(0, 4, 16))
    with pytest.raises(HandoffError, match="16 of 18"):
        announced.check_complete()


@pytest.mark.parametrize(("num_tokens", "token_hash"), [(19, b"hash"), (18, b"other")])
def test_another_prompt_is_refused(announced: Announcements, num_tokens: int, token_hash: bytes) -> None:
    done = PrefillDone(chunk(1, 16, 18), SampledToken(1), token_hash, num_tokens, 0)
    with pytest.raises(HandoffError) as caught:
        announced.check_done(done)
    assert caught.value.reason is FailureReason.MISMATCH
