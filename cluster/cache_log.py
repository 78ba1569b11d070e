"""What a worker's prefix cache holds, and its newest changes: a proxy that missed a few need not learn everything anew.

Pure; one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from engine.block_pool import CacheChange
from rpc import worker_pb2

MAX_CHANGES = 16384


class CacheLog:
    """Maintains the hashes that are held, and the last `max_changes` changes of them, numbered without a gap."""

    def __init__(self, max_changes: int = MAX_CHANGES) -> None:
        self.num_changes = 0
        self._changes: deque[CacheChange] = deque(maxlen=max_changes)
        self._held: dict[bytes, None] = {}  # a prefix's first block before its next

    def append(self, changes: Iterable[CacheChange]) -> None:
        """In the order of their numbers, none left out."""
        for change in changes:
            self.num_changes = change.sequence
            self._changes.append(change)
            if change.is_stored:
                self._held[change.block_hash] = None
            else:
                self._held.pop(change.block_hash, None)

    def since(self, after: int) -> worker_pb2.CacheUpdate:
        """All changes after the first `after`, or everything that is held when some of those are forgotten."""
        num_missed = self.num_changes - after
        if not 0 <= num_missed <= len(self._changes):
            return worker_pb2.CacheUpdate(through=self.num_changes, is_snapshot=True, stored=b"".join(self._held))
        missed = [*islice(reversed(self._changes), num_missed)]
        last: dict[bytes, bool] = {}  # of each block the last change counts, at its place
        for change in reversed(missed):
            last.pop(change.block_hash, None)
            last[change.block_hash] = change.is_stored
        return worker_pb2.CacheUpdate(
            after=after,
            through=self.num_changes,
            stored=b"".join(block_hash for block_hash, is_stored in last.items() if is_stored),
            evicted=b"".join(block_hash for block_hash, is_stored in last.items() if not is_stored),
        )
