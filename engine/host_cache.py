"""The host's copy of swapped-out KV blocks. Which of them belongs to whom is `SwapSpace`'s to say."""

from __future__ import annotations

import torch

from engine.kv_cache import KVCache
from engine.swapping import Direction, Swap


class HostCache:
    """Maintains memory for `num_blocks` blocks of a cache's layout, taken from the system as it is first written."""

    def __init__(self, cache: KVCache, num_blocks: int) -> None:
        self._device_rows = cache.as_bytes()
        is_pinned = cache.tensor.is_cuda and num_blocks > 0
        self._rows = torch.empty((num_blocks, cache.block_bytes), dtype=torch.uint8, pin_memory=is_pinned)

    def copy(self, swap: Swap) -> None:
        """Done when this returns: the source may be written again."""
        for block, host_block in zip(swap.blocks, swap.host_blocks, strict=True):
            if swap.direction is Direction.OUT:
                self._rows[host_block].copy_(self._device_rows[block])
            else:
                self._device_rows[block].copy_(self._rows[host_block])
