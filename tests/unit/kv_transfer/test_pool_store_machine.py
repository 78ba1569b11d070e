"""Readers, writers and time in any order: what is called valid was the key's bytes from the lookup on."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kv_transfer.messages import BlockRef, Ticket
from kv_transfer.pool_store import PoolStore

NUM_SLOTS = 3
LEASE_S = 5.0
KEYS = st.integers(0, 5)
KEY_LISTS = st.lists(KEYS, min_size=1, max_size=4, unique=True)
READERS = st.integers(0, 2)


class PoolStoreMachine(RuleBasedStateMachine):
    """`arena` is what the slots hold: the key's number once it is written, None while it is being written."""

    def __init__(self) -> None:
        super().__init__()
        self.store = PoolStore(NUM_SLOTS, 0.8, LEASE_S, self.evicted)
        self.arena: list[int | None] = [None] * NUM_SLOTS
        self.writing: dict[int, int] = {}  # slot by key
        self.read: dict[int, dict[int, tuple[BlockRef, int | None]]] = {}  # by reader and key: what was read when found
        self.leased_until: dict[int, float] = {}
        self.now = 0.0

    def evicted(self, key: bytes, slot: int) -> None:
        assert self.arena[slot] == key[0]
        assert all(slot not in [ref.block for ref, _ in read.values()] for read in self.leases().values())

    def leases(self) -> dict[int, dict[int, tuple[BlockRef, int | None]]]:
        """Of the readers whose lease lives."""
        return {reader: read for reader, read in self.read.items() if self.leased_until[reader] > self.now}

    @rule(key=KEYS)
    def begin(self, key: int) -> None:
        ref = self.store.begin(key_of(key))
        if ref is not None:
            assert key not in self.writing
            self.writing[key] = ref.block
            self.arena[ref.block] = None

    @rule(key=KEYS, works=st.booleans())
    def finish(self, key: int, works: bool) -> None:
        slot = self.writing.pop(key, None)
        if slot is None:
            return
        if works:
            self.arena[slot] = key
            self.store.publish([key_of(key)])
        else:
            self.store.abandon([key_of(key)])

    @rule(reader=READERS, keys=KEY_LISTS)
    def lookup(self, reader: int, keys: list[int]) -> None:
        refs = self.store.lookup(ticket_of(reader), [key_of(key) for key in keys], self.now)
        if reader not in self.leases():
            self.read.pop(reader, None)
        for key, ref in zip(keys, refs, strict=True):
            if ref is not None:
                self.read.setdefault(reader, {})[key] = (ref, self.arena[ref.block])
                self.leased_until[reader] = self.now + LEASE_S

    @rule(reader=READERS, keys=KEY_LISTS)
    def commit(self, reader: int, keys: list[int]) -> None:
        read = self.read.get(reader, {})
        refs = [read[key][0] if key in read else BlockRef(0, 1) for key in keys]
        alive = reader in self.leases()
        verdict = self.store.commit(ticket_of(reader), [key_of(key) for key in keys], refs, self.now)
        for key, valid in zip(keys, verdict, strict=True):
            assert valid == (alive and key in read)
            assert not valid or read[key][1] == key
        self.read.pop(reader, None)

    @rule(reader=READERS)
    def close(self, reader: int) -> None:
        self.store.close(ticket_of(reader))
        self.read.pop(reader, None)

    @rule(passed=st.floats(0.1, 4.0))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.store.expire(self.now)

    @rule()
    def evict(self) -> None:
        self.store.evict_above_watermark()

    @invariant()
    def the_books_add_up(self) -> None:
        self.store.check_integrity()
        assert self.store.counts().num_incomplete == len(self.writing)

    @invariant()
    def what_is_leased_still_holds_what_was_read(self) -> None:
        for read in self.leases().values():
            for key, (ref, _) in read.items():
                assert self.arena[ref.block] == key

    def teardown(self) -> None:
        for key in list(self.writing):
            self.finish(key, works=False)
        self.store.expire(self.now + LEASE_S)
        self.store.check_integrity()
        assert not self.store.has_leases


def key_of(n: int) -> bytes:
    return bytes([n]) * 16


def ticket_of(n: int) -> Ticket:
    return Ticket(bytes([n]) * 16, 1)


TestPoolStore = PoolStoreMachine.TestCase
TestPoolStore.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
