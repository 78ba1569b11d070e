"""Two ends of one transport, and the fixtures that make them: every test of a transport has these from here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pytest
import torch

from engine.kv_cache import KVCache, KVLayout
from kv_transfer.config import TransferConfig
from kv_transfer.staging import Slot, StagingRing
from kv_transfer.transport import Transport
from kv_transfer.two_sided import TwoSidedTransport
from tests.direct_signalling import DirectSignalling

LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, block_size=4, head_dim=8, dtype="float32")
NUM_BLOCKS = 16
WAIT_S = 20.0  # until a test gives up


@dataclass
class End:
    """One worker's part: its cache, whose block i is filled with i + 1, its ring and its transport."""

    incarnation: str
    cache: KVCache
    ring: StagingRing
    transport: Transport

    @cached_property
    def signalling(self) -> DirectSignalling | None:
        """How it is called by readers of the same process."""
        return DirectSignalling(self.transport) if isinstance(self.transport, TwoSidedTransport) else None

    def connect(self, source: End) -> Future[None]:
        return self.transport.connect(source.incarnation, source.transport.metadata(), source.signalling)

    def settle(self) -> None:
        """What was written to its memory so far is there for every stream."""
        if self.cache.tensor.is_cuda:
            torch.cuda.synchronize(self.cache.tensor.device)

    def slot(self, index: int = 0) -> Slot:
        return Slot(index, self.ring.memory[index])


class MakeTransport(Protocol):
    def __call__(self, incarnation: str, cache: KVCache, ring: StagingRing) -> Transport: ...


def make_end(
    incarnation: str,
    make: MakeTransport,
    layout: KVLayout = LAYOUT,
    blocks_per_slot: int = 4,
    device: str = "cpu",
) -> End:
    cache = KVCache(layout, NUM_BLOCKS, device)
    cache.as_bytes()[:] = torch.arange(1, NUM_BLOCKS + 1, dtype=torch.uint8, device=device)[:, None]
    slot_bytes = blocks_per_slot * layout.block_bytes + 1
    config = TransferConfig(staging_slots=2, staging_slot_bytes=slot_bytes, max_quarantined_slots=1)
    ring = StagingRing(config, layout.block_bytes, device, lambda _: None)
    return End(incarnation, cache, ring, make(incarnation, cache, ring))


class NewEnd(Protocol):
    def __call__(self, incarnation: str, make: MakeTransport | None = None) -> End: ...


class Ends:
    """The fixtures of a test class. Its file has one more, `make_transport`: which transport it is about."""

    DEVICES: tuple[str, ...] = ("cpu",)  # which new ends take in turn

    @pytest.fixture
    def new_end(self, make_transport: MakeTransport) -> Iterator[NewEnd]:
        ends: list[End] = []

        def new(incarnation: str, make: MakeTransport | None = None) -> End:
            device = self.DEVICES[len(ends) % len(self.DEVICES)]
            ends.append(make_end(incarnation, make or make_transport, device=device))
            return ends[-1]

        yield new
        for end in reversed(ends):
            end.transport.close()

    @pytest.fixture
    def source(self, new_end: NewEnd) -> End:
        return new_end("P")

    @pytest.fixture
    def reader(self, new_end: NewEnd) -> End:
        return new_end("D")
