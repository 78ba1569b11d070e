"""Neighbouring blocks become runs, and nothing else does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.block_runs import Run, runs_of


def test_neighbours_are_one_run_as_far_as_powers_of_two_go() -> None:
    assert list(runs_of([4, 5, 6, 7, 8, 2, 9], 4)) == [Run(0, 4, 2), Run(4, 8, 0), Run(5, 2, 0), Run(6, 9, 0)]


def test_no_run_is_longer_than_the_longest_size() -> None:
    assert list(runs_of(range(5), 2)) == [Run(0, 0, 1), Run(2, 2, 1), Run(4, 4, 0)]


@given(blocks=st.lists(st.integers(0, 9), max_size=40), num_sizes=st.integers(1, 5))
def test_the_runs_are_exactly_the_blocks_in_their_order(blocks: list[int], num_sizes: int) -> None:
    runs = list(runs_of(blocks, num_sizes))
    assert [run.block + i for run in runs for i in range(1 << run.size)] == blocks
    assert all(run.size < num_sizes for run in runs)
    assert [run.place for run in runs] == [sum(1 << r.size for r in runs[:i]) for i in range(len(runs))]
