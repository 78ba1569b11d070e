"""Which bytes of a block are which layers and heads, and who reads which heads from whom."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import KVCache, KVLayout
from kv_transfer.block_part import (
    WHOLE,
    BlockPart,
    head_moves,
    head_parts,
    heads_of,
    layer_ends,
    layer_part,
    rank_layout,
)

LAYOUT = KVLayout(num_layers=3, num_kv_heads=4, block_size=2, head_dim=4, dtype="float32")
SIZES = st.sampled_from([1, 2, 4, 8, 16])


def cache_of(layout: KVLayout) -> KVCache:
    """One block, in which every element differs."""
    cache = KVCache(layout, 1)
    cache.tensor.view(-1)[:] = torch.arange(cache.tensor.numel())
    return cache


@pytest.mark.parametrize("layers", [range(1), range(1, 3), range(2, 3), range(3)])
def test_a_layer_range_is_one_run_of_bytes(layers: range) -> None:
    cache = cache_of(LAYOUT)
    wanted = layer_part(layers, LAYOUT.num_layers, LAYOUT.block_bytes).within(LAYOUT.block_bytes)
    expected = cache.tensor[0, layers.start : layers.stop].reshape(-1)
    assert cache.as_bytes()[0, wanted.start : wanted.stop].view(torch.float32).equal(expected)


def test_all_layers_are_the_whole_block() -> None:
    assert layer_part(range(3), 3, LAYOUT.block_bytes) == WHOLE


@pytest.mark.parametrize("heads", [range(1), range(1, 3), range(3, 4), range(4)])
def test_a_head_range_is_one_run_in_each_layers_k_and_v(heads: range) -> None:
    cache = cache_of(LAYOUT)
    parts = [part.within(LAYOUT.block_bytes) for part in head_parts(LAYOUT, heads)]
    found = torch.cat([cache.as_bytes()[0, part.start : part.stop] for part in parts]).view(torch.float32)
    assert found.equal(cache.tensor[0, :, :, heads.start : heads.stop].reshape(-1))


@pytest.mark.parametrize("layers", [range(0), range(2, 4), range(-1, 1)])
def test_layers_that_are_not_there_are_refused(layers: range) -> None:
    with pytest.raises(ValueError, match="layers"):
        layer_part(layers, 3, LAYOUT.block_bytes)


@pytest.mark.parametrize("heads", [range(0), range(3, 5)])
def test_heads_that_are_not_there_are_refused(heads: range) -> None:
    with pytest.raises(ValueError, match="KV heads"):
        head_parts(LAYOUT, heads)


@pytest.mark.parametrize("part", [BlockPart(8, 8), BlockPart(-1, 8), BlockPart(0, 17), BlockPart(16)])
def test_bytes_beyond_the_block_are_refused(part: BlockPart) -> None:
    with pytest.raises(ValueError, match="no part of a block of 16"):
        part.within(16)


@pytest.mark.parametrize(
    ("num_layers", "num_ranges", "ends"),
    [(30, 4, (7, 15, 22, 30)), (2, 4, (1, 2)), (5, 1, (5,)), (4, 4, (1, 2, 3, 4))],
)
def test_layers_are_cut_into_ranges_of_about_equal_size(
    num_layers: int, num_ranges: int, ends: tuple[int, ...]
) -> None:
    assert layer_ends(num_layers, num_ranges) == ends


@given(num_heads=SIZES, num_ranks=SIZES)
def test_each_rank_holds_an_equal_share_and_together_they_hold_all(num_heads: int, num_ranks: int) -> None:
    held = [heads_of(rank, num_ranks, num_heads) for rank in range(num_ranks)]
    assert {len(heads) for heads in held} == {max(1, num_heads // num_ranks)}
    assert {head for heads in held for head in heads} == set(range(num_heads))


@pytest.mark.parametrize(("num_heads", "num_ranks"), [(3, 2), (2, 3), (6, 4)])
def test_an_uneven_share_is_refused(num_heads: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match="cannot be spread"):
        heads_of(0, num_ranks, num_heads)


@given(num_heads=SIZES, num_sources=SIZES, num_destinations=SIZES)
def test_between_unequal_sizes_every_destination_ends_with_exactly_its_heads(
    num_heads: int, num_sources: int, num_destinations: int
) -> None:
    whole = KVLayout(num_layers=2, num_kv_heads=num_heads, block_size=2, head_dim=2, dtype="float32")
    model = cache_of(whole)
    sources = [rank_cache(model, rank, num_sources) for rank in range(num_sources)]
    destinations = [KVCache(rank_layout(whole, num_destinations), 1) for _ in range(num_destinations)]
    for move in head_moves(num_heads, num_sources, num_destinations):
        source, destination = sources[move.source_rank], destinations[move.destination_rank]
        parts = head_parts(source.layout, move.source_heads)
        for part, to in zip(parts, head_parts(destination.layout, move.destination_heads), strict=True):
            destination.as_bytes()[0, to.start : to.end] = source.as_bytes()[0, part.start : part.end]
    for rank, destination in enumerate(destinations):
        assert destination.tensor.equal(rank_cache(model, rank, num_destinations).tensor)


@given(num_heads=SIZES, num_sources=SIZES, num_destinations=SIZES)
def test_between_unequal_sizes_sources_that_hold_the_same_heads_share_the_work(
    num_heads: int, num_sources: int, num_destinations: int
) -> None:
    moves = head_moves(num_heads, num_sources, num_destinations)
    wanted = [(move.destination_rank, head) for move in moves for head in move.destination_heads]
    assert len(wanted) == len(set(wanted)) == num_destinations * max(1, num_heads // num_destinations)
    busy = {move.source_rank for move in moves}
    assert len(busy) == min(num_sources, max(num_heads, num_destinations))


def rank_cache(model: KVCache, rank: int, num_ranks: int) -> KVCache:
    heads = heads_of(rank, num_ranks, model.layout.num_kv_heads)
    cache = KVCache(rank_layout(model.layout, num_ranks), 1)
    cache.tensor.copy_(model.tensor[:, :, :, heads.start : heads.stop])
    return cache
