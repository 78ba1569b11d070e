"""Who owns which KV block: reference counts, leases, generations and the prefix cache, without the memory itself.

Pure Python, one thread. Every block is in exactly one state, counted in this order: leased, used, cached, free.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockCounts:
    free: int
    used: int
    cached: int  # evictable, found by its hash
    leased: int  # a peer may read it


@dataclass(frozen=True, slots=True)
class CacheChange:
    """A block can be found by its hash from now on, or no longer."""

    sequence: int  # 1 for a pool's first change, and so on without a gap
    block_hash: bytes
    is_stored: bool


class IntegrityError(AssertionError):
    """The pool's books do not add up: a bug, never a load condition."""


class BlockPool:
    """Maintains: a block with a reference or a lease is never handed out; one without either is free or cached."""

    def __init__(self, num_blocks: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self.num_lookups = 0  # blocks asked for
        self.num_hits = 0  # blocks found
        self._references = [0] * num_blocks
        self._leases = [0] * num_blocks
        self._num_leased = 0  # blocks with a lease at least
        self._generations = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._free = list(range(num_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._num_changes = 0
        self._subscribers: list[Callable[[CacheChange], None]] = []

    def subscribe(self, on_change: Callable[[CacheChange], None]) -> None:
        """`on_change` hears of each change of what `lookup` finds, from the first on if it comes before that."""
        self._subscribers.append(on_change)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._free) + len(self._evictable)

    def allocate(self, n: int) -> list[int] | None:
        """n blocks with one reference each and a new generation, or None when there is no room."""
        if n > self.num_free:
            return None
        return [self._take() for _ in range(n)]

    def acquire(self, blocks: Iterable[int]) -> None:
        """One more reference to each."""
        for block in blocks:
            self._evictable.pop(block, None)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less to each. The last blocks of a prefix are evicted before its first."""
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise IntegrityError(f"block {block} is released more often than acquired")
            self._references[block] -= 1
            self._retire(block)

    def lease(self, blocks: Iterable[int]) -> None:
        """A peer may read these, which the caller holds, until `unlease`."""
        for block in blocks:
            if self._references[block] == 0:
                raise IntegrityError(f"block {block} is leased but not held")
            self._num_leased += self._leases[block] == 0
            self._leases[block] += 1

    def unlease(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            if self._leases[block] == 0:
                raise IntegrityError(f"block {block} has no lease to end")
            self._leases[block] -= 1
            self._num_leased -= self._leases[block] == 0
            self._retire(block)

    def generation(self, block: int) -> int:
        return self._generations[block]

    def publish(self, block: int, block_hash: bytes) -> None:
        """From now on `lookup` finds this full block; its content must never change again in this generation."""
        if self.enable_prefix_caching and self._hashes[block] is None and block_hash not in self._by_hash:
            self._hashes[block] = block_hash
            self._by_hash[block_hash] = block
            self._announce(block_hash, is_stored=True)

    def lookup(self, block_hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known prefix. They are not acquired: do so before anything else is allocated."""
        hits: list[int] = []
        for block_hash in block_hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def count_lookup(self, num_asked: int, num_found: int) -> None:
        """Once for each admission, however often it was tried."""
        self.num_lookups += num_asked
        self.num_hits += num_found

    def counts(self) -> BlockCounts:
        used = self.num_blocks - self.num_free - self._num_leased
        return BlockCounts(free=len(self._free), used=used, cached=len(self._evictable), leased=self._num_leased)

    def check_integrity(self, held: Iterable[int] | None = None) -> None:
        """Raises IntegrityError unless each block is counted once; `held`: all requests' blocks, repeated."""
        leased = sum(1 for n in self._leases if n)
        used = sum(1 for n, m in zip(self._references, self._leases, strict=True) if n and not m)
        found = BlockCounts(free=len(self._free), used=used, cached=len(self._evictable), leased=leased)
        if found != self.counts():
            raise IntegrityError(f"{found} was found, {self.counts()} was counted")
        idle = [*self._free, *self._evictable]
        if len(set(idle)) != len(idle) or any(self._references[b] or self._leases[b] for b in idle):
            raise IntegrityError("a block is free twice, or free and held")
        if any(self._hashes[b] for b in self._free) or not all(self._hashes[b] for b in self._evictable):
            raise IntegrityError("a free block has a hash, or a cached one has none")
        if any(self._hashes[block] != block_hash for block_hash, block in self._by_hash.items()):
            raise IntegrityError("the hash index and the blocks disagree")
        if held is not None:
            expected = Counter(held)
            wrong = [b for b in range(self.num_blocks) if self._references[b] != expected[b]]
            if wrong:
                raise IntegrityError(f"blocks {wrong[:8]} have another reference count than requests that hold them")

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            self._forget(block)
        self._references[block] = 1
        self._generations[block] += 1
        return block

    def _retire(self, block: int) -> None:
        if self._references[block] or self._leases[block]:
            return
        if self._hashes[block] is None:
            self._free.append(block)
        else:
            self._evictable[block] = None

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hashes[block] = None
            self._announce(block_hash, is_stored=False)

    def _announce(self, block_hash: bytes, *, is_stored: bool) -> None:
        self._num_changes += 1
        for on_change in self._subscribers:
            on_change(CacheChange(self._num_changes, block_hash, is_stored))
