"""NIXL reads KV blocks from one cache in device memory into a staging ring in device memory."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KVCache, KVLayout
from kv_transfer.config import TransferConfig
from kv_transfer.nixl import NixlTransport
from kv_transfer.staging import Slot, StagingRing

LAYOUT = KVLayout(num_layers=4, num_kv_heads=2, block_size=16, head_dim=64, dtype="bfloat16")
NUM_BLOCKS = 32


def test_blocks_in_vram_arrive_in_vram_in_the_order_asked() -> None:
    pytest.importorskip("nixl_cu12", reason="nixl_cu12 is not installed")
    config = TransferConfig(staging_slots=2, staging_slot_bytes=8 * LAYOUT.block_bytes, max_quarantined_slots=1)
    transports, caches, rings = [], [], []
    for incarnation in ("p-1", "d-1"):
        cache = KVCache(LAYOUT, NUM_BLOCKS, "cuda")
        cache.as_bytes()[:] = torch.arange(1, NUM_BLOCKS + 1, dtype=torch.uint8, device="cuda")[:, None]
        ring = StagingRing(config, LAYOUT.block_bytes, "cuda", lambda _: None)
        caches.append(cache)
        rings.append(ring)
        transports.append(NixlTransport(incarnation, cache, ring))
    source, reader = transports
    source.keep_awake(True)
    try:
        reader.connect("p-1", source.metadata()).result(30)
        reader.read("p-1", [5, 2, 9], Slot(1, rings[1].memory[1])).result(30)
        arrived = rings[1].memory[1, : 3 * LAYOUT.block_bytes].view(3, -1)
        assert torch.equal(arrived, caches[0].as_bytes()[[5, 2, 9]])
    finally:
        reader.close()
        source.close()
