"""What a pool node has: entries by key, their slots in the arena, readers' leases, and what is evicted next.

Pure, one thread, time is an argument; the bytes are elsewhere. Readers find complete entries only, and an entry that
anybody leases keeps its slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kv_transfer.messages import BlockRef, Ticket


class PoolIntegrityError(AssertionError):
    """The store's books do not add up: a bug, never a load condition."""


@dataclass(slots=True, eq=False)
class Entry:
    """One key's place in the arena. Changed by the store alone."""

    key: bytes
    ref: BlockRef
    complete: bool = False  # until then its slot is, or may be, written
    num_leases: int = 0


@dataclass(slots=True, eq=False)
class ReadLease:
    """What one reader may rely on until `expires_at`."""

    expires_at: float
    entries: dict[bytes, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Entries and slots now; hits, misses and evictions since the start."""

    num_objects: int  # complete
    num_incomplete: int
    num_leased: int
    num_free: int
    num_hits: int
    num_misses: int
    num_evictions: int


class PoolStore:
    """Maintains: each slot is free or one entry's; a slot gets a new generation before it is written again.

    `on_evicted` hears of each entry that is evicted, and its slot, while the slot still holds its bytes.
    """

    def __init__(
        self,
        num_slots: int,
        watermark: float = 1.0,
        lease_s: float = 30.0,
        on_evicted: Callable[[bytes, int], None] = lambda key, slot: None,
    ) -> None:
        """`watermark`: the share of slots above which `evict_above_watermark` has something to do."""
        self.num_slots = num_slots
        self.num_hits = 0
        self.num_misses = 0
        self.num_evictions = 0
        self._lease_s = lease_s
        self._on_evicted = on_evicted
        self._max_used = max(1, int(num_slots * watermark))
        self._generations = [0] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._entries: dict[bytes, Entry] = {}
        self._evictable: OrderedDict[bytes, Entry] = OrderedDict()  # complete, nobody's; least recently used first
        self._leases: dict[Ticket, ReadLease] = {}

    @property
    def has_leases(self) -> bool:
        return bool(self._leases)

    def lookup(self, reader: Ticket, keys: Sequence[bytes], now: float) -> list[BlockRef | None]:
        """Leases every complete entry found, and starts the reader's time anew; None for what is not there."""
        self.expire(now)
        found = [self._readable(key) for key in keys]
        num_found = sum(entry is not None for entry in found)
        self.num_hits += num_found
        self.num_misses += len(keys) - num_found
        if num_found:
            lease = self._leases.setdefault(reader, ReadLease(now))
            lease.expires_at = now + self._lease_s
            for entry in found:
                if entry is not None:
                    self._lease(lease, entry)
        return [entry.ref if entry is not None else None for entry in found]

    def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef], now: float) -> list[bool]:
        """Whether each block was that key's, under this lease, all the time. Ends the lease."""
        lease = self._leases.get(reader)
        if lease is None or now >= lease.expires_at:
            self.close(reader)
            return [False] * len(keys)
        leased = [lease.entries.get(key) for key in keys]
        verdict = [entry is not None and entry.ref == ref for entry, ref in zip(leased, refs, strict=True)]
        self.close(reader)
        return verdict

    def close(self, reader: Ticket) -> bool:
        """Ends the lease, the last blocks of a prefix first, so that they are evicted before its first.

        Idempotent: whether there was one.
        """
        lease = self._leases.pop(reader, None)
        if lease is None:
            return False
        for entry in reversed(lease.entries.values()):
            entry.num_leases -= 1
            self._retire(entry)
        return True

    def expire(self, now: float) -> int:
        """Ends the leases that have run out; how many they were."""
        expired = [reader for reader, lease in self._leases.items() if lease.expires_at <= now]
        for reader in expired:
            self.close(reader)
        return len(expired)

    def holds(self, key: bytes) -> bool:
        """Whether a lookup would find it now."""
        return self._readable(key) is not None

    def begin(self, key: bytes) -> BlockRef | None:
        """A slot to write `key` into, found by nobody until `publish`.

        None when the key is here or on its way already, or when nothing can be evicted for it.
        """
        if key in self._entries:
            return None
        if not self._free and not self._evictable:
            return None
        if not self._free:
            self._evict_oldest()
        slot = self._free.pop()
        self._generations[slot] += 1
        entry = Entry(key, BlockRef(slot, self._generations[slot]))
        self._entries[key] = entry
        return entry.ref

    def publish(self, keys: Sequence[bytes]) -> None:
        """These are written: from now on readers find them. Nothing writes their slots any more."""
        for key in reversed(keys):
            entry = self._incomplete(key)
            entry.complete = True
            self._retire(entry)

    def abandon(self, keys: Sequence[bytes]) -> None:
        """These will not be written, and nothing writes their slots any more."""
        for key in keys:
            self._remove(self._incomplete(key))

    def evict_above_watermark(self) -> None:
        """As many as it was passed by, so that who comes next need not wait for an eviction."""
        num_above = self.num_slots - len(self._free) - self._max_used
        for _ in range(min(num_above, len(self._evictable))):
            self._evict_oldest()

    def counts(self) -> PoolCounts:
        """May be called from any thread."""
        entries = list(self._entries.values())
        num_incomplete = sum(not entry.complete for entry in entries)
        return PoolCounts(
            num_objects=len(entries) - num_incomplete,
            num_incomplete=num_incomplete,
            num_leased=sum(entry.num_leases > 0 for entry in entries),
            num_free=len(self._free),
            num_hits=self.num_hits,
            num_misses=self.num_misses,
            num_evictions=self.num_evictions,
        )

    def check_integrity(self) -> None:
        """Raises PoolIntegrityError unless each slot is counted once and every lease is an entry's."""
        slots = [*self._free, *(entry.ref.block for entry in self._entries.values())]
        if sorted(slots) != list(range(self.num_slots)):
            raise PoolIntegrityError("a slot is lost, or has two owners")
        leased = [entry for lease in self._leases.values() for entry in lease.entries.values()]
        for key, entry in self._entries.items():
            if entry.key != key or entry.ref.generation != self._generations[entry.ref.block]:
                raise PoolIntegrityError(f"the entry of {key.hex()} is not its slot's")
            if entry.num_leases != leased.count(entry):
                raise PoolIntegrityError(f"{key.hex()} has {entry.num_leases} leases, {leased.count(entry)} were found")
            is_evictable = entry.complete and not entry.num_leases
            if is_evictable != (key in self._evictable):
                raise PoolIntegrityError(f"{key.hex()} is evictable and must not be, or the reverse")
        if any(self._entries.get(entry.key) is not entry for entry in (*leased, *self._evictable.values())):
            raise PoolIntegrityError("an entry that is gone is leased or evictable")

    def _readable(self, key: bytes) -> Entry | None:
        entry = self._entries.get(key)
        return entry if entry is not None and entry.complete else None

    def _incomplete(self, key: bytes) -> Entry:
        entry = self._entries[key]
        if entry.complete:
            raise PoolIntegrityError(f"{key.hex()} was published already")
        return entry

    def _lease(self, lease: ReadLease, entry: Entry) -> None:
        if entry.key not in lease.entries:
            lease.entries[entry.key] = entry
            entry.num_leases += 1
            self._evictable.pop(entry.key, None)

    def _retire(self, entry: Entry) -> None:
        """Nobody's any more, if so: the most recently used of those."""
        if entry.complete and not entry.num_leases:
            self._evictable[entry.key] = entry

    def _evict_oldest(self) -> None:
        _, entry = self._evictable.popitem(last=False)
        self._on_evicted(entry.key, entry.ref.block)
        self._remove(entry)
        self.num_evictions += 1

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.key]
        self._free.append(entry.ref.block)
