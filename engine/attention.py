"""Attention over the paged KV cache: what a step must know, the write of new K and V, and the choice of a kernel.

`Attention` reads the cache in place and writes nothing; which implementation runs is decided once, per cache.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import Work


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where each sequence of a step has its queries and its KV. The last query of a sequence is its last token."""

    sequence_lengths: array[int]  # "i"; tokens in the cache once this step's are written
    query_starts: array[int]  # "i"; first row of each sequence in the flat batch; one more: the number of rows
    block_tables: Tensor  # int32 [num_sequences, most blocks], padded with 0
    blocks: Tensor  # int64 [num_tokens]: where each row's K and V go
    slots: Tensor  # int64 [num_tokens]

    @classmethod
    def of(cls, works: Sequence[Work], block_size: int, device: str = "cpu") -> AttentionMetadata:
        tables = [work.blocks[: -(-work.end // block_size)] for work in works]
        width = max(len(table) for table in tables)
        positions = [(work, i) for work in works for i in range(work.start, work.end)]
        return cls(
            sequence_lengths=array("i", [work.end for work in works]),
            query_starts=array("i", itertools.accumulate((work.num_tokens for work in works), initial=0)),
            block_tables=torch.tensor(
                [table + [0] * (width - len(table)) for table in tables], dtype=torch.int32, device=device
            ),
            blocks=torch.tensor([work.blocks[i // block_size] for work, i in positions], device=device),
            slots=torch.tensor([i % block_size for _, i in positions], device=device),
        )


# (query [num_tokens, num_heads, head_dim], whole cache, layer, metadata) -> [num_tokens, num_heads, head_dim]
# Scores are scaled by head_dim ** -0.5; a query sees its own position and those before it.
Attention = Callable[[Tensor, Tensor, int, AttentionMetadata], Tensor]


def write_kv(key: Tensor, value: Tensor, cache: Tensor, layer: int, metadata: AttentionMetadata) -> None:
    """Puts this step's K and V, each `[num_tokens, num_kv_heads, head_dim]`, into their blocks and slots."""
    cache[:, layer, 0][metadata.blocks, :, metadata.slots] = key
    cache[:, layer, 1][metadata.blocks, :, metadata.slots] = value


def torch_attention(query: Tensor, cache: Tensor, layer: int, metadata: AttentionMetadata) -> Tensor:
    """The fallback, for every device and dtype: gathers a sequence's blocks, then torch's own attention."""
    output = torch.empty_like(query)
    for i, length in enumerate(metadata.sequence_lengths):
        rows = slice(metadata.query_starts[i], metadata.query_starts[i + 1])
        output[rows] = _attend(query[rows], *_gather(cache, layer, metadata.block_tables[i], length))
    return output


def _gather(cache: Tensor, layer: int, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """K and V of one sequence, each `[num_kv_heads, length, head_dim]`."""
    block_size = cache.shape[4]
    blocks = cache[:, layer].index_select(0, table[: -(-length // block_size)])
    heads = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
    return heads[0], heads[1]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    num_queries, length = query.shape[0], key.shape[1]
    mask = None
    if num_queries > 1:
        mask = torch.ones(num_queries, length, dtype=torch.bool, device=query.device).tril(length - num_queries)
    heads = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], key[None], value[None], attn_mask=mask, enable_gqa=True
    )
    return heads[0].transpose(0, 1)
