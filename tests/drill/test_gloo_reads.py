"""Reads over Gloo while calls get lost, late and out of order and connections are given up: right bytes or an error.

Two sources and two readers in one process, with deadlines so short that transfers are aborted in their middle.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine.kv_cache import KVLayout
from kv_transfer.config import TransferConfig
from kv_transfer.gloo import GlooCommunicators
from kv_transfer.staging import Slot
from kv_transfer.transport import TransferFailed
from kv_transfer.two_sided import TwoSidedTransport
from tests.contract.ends import NUM_BLOCKS, End, make_end
from tests.direct_signalling import DirectSignalling

pytestmark = pytest.mark.drill

SEED = 1
DRILL_S = 5.0
WAIT_S = 10.0  # far beyond every deadline below
LAYOUT = KVLayout(num_layers=4, num_kv_heads=4, block_size=32, head_dim=64, dtype="float32")  # 256 KiB a block
CONFIG = TransferConfig(transfer_timeout_s=0.03, handshake_timeout_s=0.5, min_bytes_per_s=1e9)
NUM_SLOTS = 6  # of each reader, each used by a thread of its own


class Pair:
    """One reader's way to one source."""

    def __init__(self, reader: End, source: End) -> None:
        assert isinstance(source.transport, TwoSidedTransport)
        self.reader = reader
        self.source = source
        self.signalling = DirectSignalling(source.transport)

    def connect(self) -> None:
        metadata = self.source.transport.metadata()
        self.reader.transport.connect(self.source.incarnation, metadata, self.signalling)


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    ends = [gloo_end(name) for name in ("P0", "P1", "D0", "D1")]
    pairs = [Pair(reader, source) for reader in ends[2:] for source in ends[:2]]
    for pair in pairs:
        pair.connect()
    yield pairs
    for end in ends:
        end.transport.close()


def gloo_end(name: str) -> End:
    kind = GlooCommunicators("127.0.0.1")
    return make_end(name, lambda incarnation, cache, ring: TwoSidedTransport(incarnation, cache, kind, CONFIG), LAYOUT)


def test_every_read_ends_with_the_right_bytes_or_an_error_and_its_slot_is_left_alone_after_it(
    pairs: list[Pair],
) -> None:
    rng, until = random.Random(SEED), time.monotonic() + DRILL_S
    outcomes: Counter[str] = Counter()
    with ThreadPoolExecutor(2 * NUM_SLOTS) as pool:
        reading = [
            pool.submit(read_on, pairs[reader : reader + 2], until, random.Random(rng.random()), outcomes)
            for reader in (0, 2)
            for _ in range(NUM_SLOTS)
        ]
        while time.monotonic() < until:
            break_something(rng.choice(pairs), rng)
        for each in reading:
            each.result(WAIT_S)
    assert outcomes["read"] > 50, (SEED, outcomes)
    assert outcomes["failed"] > 5, (SEED, outcomes)


def read_on(pairs: list[Pair], until: float, rng: random.Random, outcomes: Counter[str]) -> None:
    slot = Slot(0, torch.empty(4 * LAYOUT.block_bytes, dtype=torch.uint8))
    while time.monotonic() < until:
        pair = rng.choice(pairs)
        blocks = [rng.randrange(NUM_BLOCKS) for _ in range(rng.randint(1, 4))]
        read = pair.reader.transport.read(pair.source.incarnation, blocks, slot, rng.random())
        try:
            read.result(WAIT_S)
        except TransferFailed:
            outcomes["failed"] += 1
            pair.connect()
        else:
            outcomes["read"] += 1
            arrived = slot.memory[: len(blocks) * LAYOUT.block_bytes].view(len(blocks), -1)
            assert arrived.equal(pair.source.cache.as_bytes()[blocks]), SEED
        slot.memory.fill_(200)
        pause(rng, 0.02)
        assert bool((slot.memory == 200).all()), SEED


def break_something(pair: Pair, rng: random.Random) -> None:
    """For a while, or once."""
    pause(rng, 0.3)
    signalling = pair.signalling
    match rng.randrange(5):
        case 0:
            signalling.is_silent = True
            pause(rng, 0.2)
            signalling.is_silent = False
        case 1:
            signalling.is_gone = True
            pause(rng, 0.2)
            signalling.is_gone = False
        case 2:
            signalling.lose_answers += 2
        case 3:
            signalling.hold_sends = True
            pause(rng, 0.1)
            signalling.let_go(last_first=rng.random() < 0.5)
        case 4:
            pair.reader.transport.forget(pair.source.incarnation)
            pair.connect()


def pause(rng: random.Random, most_s: float) -> None:
    threading.Event().wait(rng.uniform(0, most_s))
