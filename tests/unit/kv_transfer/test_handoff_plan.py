"""What D makes of P's announcements: each block once, and nothing but this prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampled_token import SampledToken
from kv_transfer.handoff_plan import Announcements, Plan, Readable
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
    num_layers=6,
)
ALL = range(6)


def chunk(sequence: int, start: int, end: int, generation: int = 1, layers: range | None = None) -> ChunkReady:
    refs = tuple(BlockRef(i, generation) for i in range(start // SIZE, -(-end // SIZE)))
    return ChunkReady(sequence, start, end, refs, layers)


def readable(first: int, num_blocks: int, layers: range = ALL) -> Readable:
    """In blocks counted from the first that the worker does not have, which is P's block 1."""
    return Readable(first, tuple(BlockRef(first + 1 + i, 1) for i in range(num_blocks)), layers)


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
    new = [piece for c in chunks for piece in announced.take(c)]
    assert new == [readable(0, 2), readable(2, 1), readable(3, 1)]
    assert announced.refs == [BlockRef(i, 1) for i in range(1, 5)]
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
    assert announced.take(chunk(0, 4, 16)) == [readable(2, 1)]
    announced.restart()
    assert announced.take(chunk(0, 4, 8)) == []
    assert announced.take(chunk(1, 8, 18)) == [readable(3, 1)]
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
        chunk(0, 4, 12, layers=range(2, 4)),  # leaves layers out
        chunk(0, 4, 12, layers=range(7)),  # more layers than there are
        chunk(0, 4, 12, layers=range(0)),
    ],
)
def test_a_chunk_that_cannot_follow_is_refused(announced: Announcements, wrong: ChunkReady) -> None:
    with pytest.raises(HandoffError) as caught:
        announced.take(wrong)
    assert caught.value.reason is FailureReason.MISMATCH


class TestLayers:
    def test_of_the_same_blocks_add_up_to_them(self, announced: Announcements) -> None:
        announced.take(chunk(0, 4, 12))
        assert announced.take(chunk(1, 12, 18, layers=range(2))) == [readable(2, 2, range(2))]
        assert announced.take(chunk(2, 12, 18, layers=range(2, 5))) == [readable(2, 2, range(2, 5))]
        with pytest.raises(HandoffError, match="12 of 18"):
            announced.check_complete()
        assert announced.take(chunk(3, 12, 18, layers=range(5, 6))) == [readable(2, 2, range(5, 6))]
        announced.check_complete()

    def test_that_are_all_announced_leave_nothing_for_the_tail(self, announced: Announcements) -> None:
        announced.take(chunk(0, 4, 18, layers=range(5)))
        announced.take(chunk(1, 4, 18, layers=range(5, 6)))
        assert announced.take(ChunkReady(2, 18, 18, ())) == []
        announced.check_complete()

    @pytest.mark.parametrize(
        "wrong",
        [
            chunk(1, 4, 12, layers=range(3, 6)),  # leaves a layer out
            chunk(1, 4, 12, layers=range(1, 6)),  # says one again
            chunk(1, 4, 12),  # says all again
            chunk(1, 4, 16, layers=range(2, 6)),  # of more tokens
            chunk(1, 12, 18),  # of the next ones
        ],
    )
    def test_that_cannot_follow_are_refused(self, announced: Announcements, wrong: ChunkReady) -> None:
        announced.take(chunk(0, 4, 12, layers=range(2)))
        with pytest.raises(HandoffError) as caught:
            announced.take(wrong)
        assert caught.value.reason is FailureReason.MISMATCH

    def test_that_were_known_before_the_stream_broke_are_not_read_again(self, announced: Announcements) -> None:
        announced.take(chunk(0, 4, 12))
        announced.take(chunk(1, 12, 18, layers=range(2)))
        announced.restart()
        assert announced.take(chunk(0, 4, 18)) == [readable(2, 2, range(2, 6))]
        announced.check_complete()


CUTS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 5), unique=True).map(sorted)), max_size=4)


@given(streams=st.lists(st.tuples(CUTS, st.integers(0, 12)), max_size=5))
def test_every_layer_of_every_block_is_read_once_however_often_the_stream_breaks(
    streams: list[tuple[list[tuple[bool, list[int]]], int]],
) -> None:
    announced = Announcements(PLAN)
    read: Counter[tuple[int, int]] = Counter()
    for cuts, num_heard in [*streams, ([], 100)]:
        announced.restart()
        for event in stream(cuts)[:num_heard]:
            for piece in announced.take(event):
                read.update((piece.first + i, layer) for i in range(len(piece.blocks)) for layer in piece.layers)
    announced.check_complete()
    assert read == Counter((block, layer) for block in range(4) for layer in ALL)


def stream(cuts: Sequence[tuple[bool, list[int]]]) -> list[ChunkReady]:
    """All of the prompt, cut after some blocks, and each piece between layers."""
    ends = [4 + SIZE * (i + 1) for i, (cut, _) in enumerate(cuts) if cut and i < 3]
    chunks: list[ChunkReady] = []
    for i, (start, end) in enumerate(zip([4, *ends], [*ends, 18], strict=True)):
        layers = [0, *(cuts[i][1] if i < len(cuts) else []), 6]
        for first, last in pairwise(layers):
            chunks.append(chunk(len(chunks), start, end, layers=range(first, last)))
    return chunks


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
