"""Which bytes of each block a read is about: a layer range, a head range, or all.

Pure arithmetic on the layout `[layer, 2, kv_head, slot, head_dim]` of one block: a layer range is one run of bytes, a
head range one run within each layer's K and V.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine.kv_cache import KVLayout


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Bytes `[start, end)` of a block, the same in each block of a read; without an `end`, up to the block's own."""

    start: int = 0
    end: int | None = None

    def within(self, block_bytes: int) -> range:
        """The bytes as they are in a block of that size. Raises ValueError when they are none of it."""
        end = block_bytes if self.end is None else self.end
        if not 0 <= self.start < end <= block_bytes:
            raise ValueError(f"bytes [{self.start}, {end}) are no part of a block of {block_bytes}")
        return range(self.start, end)

    def num_bytes(self, block_bytes: int) -> int:
        return len(self.within(block_bytes))


WHOLE = BlockPart()


@dataclass(frozen=True, slots=True)
class HeadMove:
    """KV heads that a rank of the source holds and a rank of the destination needs, as each counts its own."""

    source_rank: int
    source_heads: range
    destination_rank: int
    destination_heads: range


def layer_part(layers: range, num_layers: int, block_bytes: int) -> BlockPart:
    """The bytes of these layers. Raises ValueError when the block has other ones."""
    if not 0 <= layers.start < layers.stop <= num_layers or block_bytes % num_layers:
        raise ValueError(f"layers [{layers.start}, {layers.stop}) of a block of {num_layers} in {block_bytes} bytes")
    if len(layers) == num_layers:
        return WHOLE
    layer_bytes = block_bytes // num_layers
    return BlockPart(layers.start * layer_bytes, layers.stop * layer_bytes)


def layer_ends(num_layers: int, num_ranges: int) -> tuple[int, ...]:
    """Where each of `num_ranges` ranges of about equal size ends; fewer of them when there are fewer layers."""
    num_ranges = min(num_ranges, num_layers)
    return tuple(num_layers * i // num_ranges for i in range(1, num_ranges + 1))


def head_parts(layout: KVLayout, heads: range) -> tuple[BlockPart, ...]:
    """The bytes of these KV heads: 2 * num_layers parts in the order of layers, K before V.

    Those of a `HeadMove`'s source and destination, each in its own layout, go into one another one by one.
    """
    if not 0 <= heads.start < heads.stop <= layout.num_kv_heads:
        raise ValueError(f"KV heads [{heads.start}, {heads.stop}) of a layout that has {layout.num_kv_heads}")
    half_bytes = layout.block_bytes // layout.num_layers // 2  # K, or V, of one layer
    head_bytes = half_bytes // layout.num_kv_heads
    return tuple(
        BlockPart(i * half_bytes + heads.start * head_bytes, i * half_bytes + heads.stop * head_bytes)
        for i in range(2 * layout.num_layers)
    )


def heads_of(rank: int, num_ranks: int, num_kv_heads: int) -> range:
    """The model's KV heads that a rank holds: an equal share, or one, shared with others, when there are more ranks.

    Raises ValueError when neither divides the other.
    """
    if num_kv_heads % num_ranks == 0:
        share = num_kv_heads // num_ranks
        return range(rank * share, (rank + 1) * share)
    if num_ranks % num_kv_heads == 0:
        head = rank // (num_ranks // num_kv_heads)
        return range(head, head + 1)
    raise ValueError(f"{num_kv_heads} KV heads cannot be spread evenly over {num_ranks} ranks")


def rank_layout(layout: KVLayout, num_ranks: int) -> KVLayout:
    """What each rank's cache looks like; `layout` is the whole model's."""
    return replace(layout, num_kv_heads=len(heads_of(0, num_ranks, layout.num_kv_heads)))


def head_moves(num_kv_heads: int, num_sources: int, num_destinations: int) -> tuple[HeadMove, ...]:
    """Who reads which heads from whom, between different tensor-parallel sizes: each head of a destination once.

    Where several sources hold the same head, the destinations that need it take turns.
    """
    return tuple(
        move
        for destination in range(num_destinations)
        for move in _moves_to(destination, num_kv_heads, num_sources, num_destinations)
    )


def _moves_to(destination: int, num_kv_heads: int, num_sources: int, num_destinations: int) -> Iterator[HeadMove]:
    wanted = heads_of(destination, num_destinations, num_kv_heads)
    num_copies = max(1, num_sources // num_kv_heads)  # of each head, among the sources
    for first in range(0, num_sources, num_copies):
        held = heads_of(first, num_sources, num_kv_heads)
        start, stop = max(wanted.start, held.start), min(wanted.stop, held.stop)
        if start < stop:
            yield HeadMove(
                source_rank=first + destination % num_copies,
                source_heads=range(start - held.start, stop - held.start),
                destination_rank=destination,
                destination_heads=range(start - wanted.start, stop - wanted.start),
            )
