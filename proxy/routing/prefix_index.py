"""Which worker's prefix cache holds which block, as the workers tell it: a bounded, best-effort copy.

Nothing here decides what is right: a worker looks up its own cache. What is lost, late or evicted here costs a hit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from engine.block_hash import DIGEST_BYTES
from rpc import worker_pb2


class HeldBlocks:
    """Maintains what one worker holds, after so many of its changes; the least recently used block first."""

    def __init__(self) -> None:
        self.num_changes = 0
        self.hashes: OrderedDict[bytes, None] = OrderedDict()

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Puts these to the end: the first of a prefix last, since without it the others are of no use."""
        for block_hash in reversed(hashes):
            self.hashes[block_hash] = None
            self.hashes.move_to_end(block_hash)


class PrefixIndex:
    """Maintains at most `max_blocks` entries, a block that two workers hold counted twice."""

    def __init__(self, max_blocks: int) -> None:
        self.num_blocks = 0
        self.num_evicted = 0  # to stay within the bound
        self._max_blocks = max_blocks
        self._workers: dict[str, HeldBlocks] = {}  # by incarnation

    def num_changes(self, worker: str) -> int:
        """Of this worker's changes, those that are taken in."""
        held = self._workers.get(worker)
        return 0 if held is None else held.num_changes

    def apply(self, worker: str, update: worker_pb2.CacheUpdate) -> bool:
        """False: changes before it are missing, so nothing was taken in. What is known already changes nothing."""
        held = self._workers.get(worker) or HeldBlocks()
        if update.is_snapshot:
            self.forget(worker)
            held = HeldBlocks()
        elif update.after > held.num_changes:
            return False
        elif update.through <= held.num_changes:
            return True
        self._workers[worker] = held
        held.num_changes = update.through
        num_before = len(held.hashes)
        for block_hash in _split(update.evicted):
            held.hashes.pop(block_hash, None)
        held.touch(_split(update.stored)[: self._max_blocks])
        self.num_blocks += len(held.hashes) - num_before
        self._keep_bound()
        return True

    def num_cached(self, worker: str, block_hashes: Sequence[bytes]) -> int:
        """How many of a prompt's first blocks the worker holds."""
        held = self._workers.get(worker)
        if held is None:
            return 0
        for n, block_hash in enumerate(block_hashes):
            if block_hash not in held.hashes:
                return n
        return len(block_hashes)

    def used(self, worker: str, block_hashes: Sequence[bytes]) -> None:
        """A prompt goes there whose first blocks these are, as many as `num_cached` said."""
        held = self._workers.get(worker)
        if held is not None:
            held.touch(block_hashes)

    def forget(self, worker: str) -> None:
        """It is gone, and its cache with it."""
        held = self._workers.pop(worker, None)
        if held is not None:
            self.num_blocks -= len(held.hashes)

    def _keep_bound(self) -> None:
        while (num_over := self.num_blocks - self._max_blocks) > 0:
            largest = max(self._workers.values(), key=lambda held: len(held.hashes))
            num_evicted = max(1, num_over // len(self._workers))  # at least its share: it has the most
            for _ in range(num_evicted):
                largest.hashes.popitem(last=False)
            self.num_blocks -= num_evicted
            self.num_evicted += num_evicted


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[i : i + DIGEST_BYTES] for i in range(0, len(hashes), DIGEST_BYTES)]
