"""A cache that does not fit is told in numbers."""

from __future__ import annotations

import pytest

from engine.kv_cache import KVCache, KVLayout


def test_a_cache_larger_than_the_memory_says_what_it_needs_and_what_is_free() -> None:
    layout = KVLayout(num_layers=30, num_kv_heads=3, block_size=16, head_dim=64, dtype="float32")
    with pytest.raises(
        MemoryError, match=r"num_blocks \(10000000000\) needs .* GiB of KV cache on cpu, 720 KiB a block"
    ):
        KVCache(layout, 10_000_000_000)
