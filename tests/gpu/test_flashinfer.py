"""FlashInfer takes a layer of the cache where it lies, with the stride of whole blocks, and agrees with torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.attention import AttentionMetadata, torch_attention
from engine.batch import Work
from engine.kv_cache import KVCache, KVLayout
from engine.request import Request, SamplingParams

LAYOUT = KVLayout(num_layers=3, num_kv_heads=2, block_size=16, head_dim=64, dtype="bfloat16")
NUM_HEADS = 4
WORKSPACE_BYTES = 128 << 20
# (blocks, first token of this step, end): a whole prompt, a chunk in its middle, a decode
SEQUENCES = [([3, 1, 7], 0, 40), ([2, 9, 4, 11], 32, 50), ([5, 8], 20, 21)]


@pytest.mark.parametrize("layer", range(LAYOUT.num_layers))
def test_a_strided_layer_view_gives_what_torch_gives(layer: int) -> None:
    flashinfer = pytest.importorskip("flashinfer", reason="flashinfer-python is not installed")
    torch.manual_seed(0)
    cache = KVCache(LAYOUT, 12, "cuda").tensor.normal_()
    works = [work(*sequence) for sequence in SEQUENCES]
    metadata = AttentionMetadata.of(works, LAYOUT.block_size, "cuda")
    query = torch.randn(metadata.query_starts[-1], NUM_HEADS, LAYOUT.head_dim, dtype=torch.bfloat16, device="cuda")
    keys, values = cache[:, layer, 0], cache[:, layer, 1]  # [block, kv_head, slot, head_dim]
    assert not keys.is_contiguous()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"), "HND"
    )
    plan(wrapper, metadata)
    torch.testing.assert_close(
        wrapper.run(query, (keys, values)), torch_attention(query, cache, layer, metadata), rtol=2e-2, atol=2e-2
    )


def work(blocks: list[int], start: int, end: int) -> Work:
    request = Request("r", list(range(end)), end, SamplingParams(max_tokens=1))
    request.blocks = blocks
    return Work(request, start, end - start, sample=True)


def plan(wrapper: Any, metadata: AttentionMetadata) -> None:
    size = LAYOUT.block_size
    counts = [-(-length // size) for length in metadata.sequence_lengths]
    ends = [sum(counts[:i]) for i in range(len(counts) + 1)]
    wrapper.plan(
        int32(list(metadata.query_starts)),
        int32(ends),
        torch.cat([metadata.block_tables[i, :count] for i, count in enumerate(counts)]),
        int32([(length - 1) % size + 1 for length in metadata.sequence_lengths]),
        NUM_HEADS,
        LAYOUT.num_kv_heads,
        LAYOUT.head_dim,
        size,
        causal=True,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")
