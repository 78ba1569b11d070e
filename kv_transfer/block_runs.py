"""Neighbouring blocks as few long runs, so that one descriptor moves many of them.

Runs are 1, 2, 4, … blocks long, so that the descriptors of all that there can be are prepared beforehand: of those of
`num_blocks` blocks, the one of `2 ** size` blocks from `block` on is number `size * num_blocks + block`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    place: int  # in the list of blocks
    block: int
    size: int  # 2 ** size blocks


def runs_of(blocks: Sequence[int], num_sizes: int) -> Iterator[Run]:
    """All of `blocks` in their order, in as few runs as sizes below `num_sizes` allow."""
    place = 0
    while place < len(blocks):
        length = 1
        while place + length < len(blocks) and blocks[place + length] == blocks[place] + length:
            length += 1
        last = place + length
        while place < last:
            size = min((last - place).bit_length(), num_sizes) - 1
            yield Run(place, blocks[place], size)
            place += 1 << size
