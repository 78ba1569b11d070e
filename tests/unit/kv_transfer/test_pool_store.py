"""What the store evicts, and what a reader may rely on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kv_transfer.messages import BlockRef, Ticket
from kv_transfer.pool_store import PoolIntegrityError, PoolStore

LEASE_S = 10.0


def key(n: int) -> bytes:
    return bytes([n]) * 16


def reader(n: int = 0) -> Ticket:
    return Ticket(bytes([n]) * 16, 1)


def make_store(num_slots: int = 4, watermark: float = 1.0, evicted: list[bytes] | None = None) -> PoolStore:
    gone: list[bytes] = [] if evicted is None else evicted
    return PoolStore(num_slots, watermark, LEASE_S, on_evicted=lambda key, slot: gone.append(key))


def put(store: PoolStore, *numbers: int) -> list[BlockRef]:
    keys = [key(n) for n in numbers]
    refs = [store.begin(k) for k in keys]
    store.publish(keys)
    store.check_integrity()
    return [ref for ref in refs if ref is not None]


def found(store: PoolStore, numbers: Sequence[int], now: float = 0.0) -> list[int]:
    """Those of the numbers that are there; no lease is left."""
    refs = store.lookup(reader(99), [key(n) for n in numbers], now)
    store.close(reader(99))
    return [n for n, ref in zip(numbers, refs, strict=True) if ref is not None]


def test_an_entry_is_found_only_once_it_is_complete() -> None:
    store = make_store()
    store.begin(key(1))
    assert found(store, [1]) == []
    store.publish([key(1)])
    assert found(store, [1]) == [1]
    store.check_integrity()


def test_a_key_that_is_here_or_on_its_way_is_not_begun_again() -> None:
    store = make_store()
    put(store, 1)
    assert store.begin(key(1)) is None
    store.begin(key(2))
    assert store.begin(key(2)) is None


def test_an_abandoned_entry_gives_its_slot_back() -> None:
    store = make_store(num_slots=1)
    store.begin(key(1))
    assert store.begin(key(2)) is None
    store.abandon([key(1)])
    assert store.begin(key(2)) is not None
    store.check_integrity()


def test_a_published_entry_is_neither_published_again_nor_abandoned() -> None:
    store = make_store()
    put(store, 1)
    with pytest.raises(PoolIntegrityError):
        store.publish([key(1)])
    with pytest.raises(PoolIntegrityError):
        store.abandon([key(1)])


def test_the_least_recently_used_leaves_first() -> None:
    evicted: list[bytes] = []
    store = make_store(num_slots=3, evicted=evicted)
    put(store, 1)
    put(store, 2)
    put(store, 3)
    assert found(store, [1]) == [1]
    put(store, 4)
    assert evicted == [key(2)]


def test_the_end_of_a_prefix_leaves_before_its_start() -> None:
    evicted: list[bytes] = []
    store = make_store(num_slots=3, evicted=evicted)
    put(store, 1, 2, 3)
    put(store, 4)
    assert evicted == [key(3)]
    assert found(store, [4, 1, 2]) == [4, 1, 2]
    put(store, 5)
    assert evicted == [key(3), key(2)]


def test_a_leased_entry_keeps_its_slot_until_its_last_reader_has_left() -> None:
    store = make_store(num_slots=1)
    put(store, 1)
    store.lookup(reader(1), [key(1)], now=0.0)
    store.lookup(reader(2), [key(1)], now=0.0)
    store.close(reader(1))
    assert store.begin(key(2)) is None
    store.close(reader(2))
    assert store.begin(key(2)) is not None
    store.check_integrity()


def test_what_was_read_under_a_lease_is_valid() -> None:
    store = make_store()
    put(store, 1, 2)
    keys = [key(1), key(2)]
    refs = store.lookup(reader(), keys, now=0.0)
    assert None not in refs
    assert store.commit(reader(), keys, [ref for ref in refs if ref], now=LEASE_S - 1) == [True, True]
    assert not store.has_leases


def test_nothing_is_valid_after_the_lease_or_twice() -> None:
    store = make_store()
    [ref] = put(store, 1)
    store.lookup(reader(), [key(1)], now=0.0)
    assert store.commit(reader(), [key(1)], [ref], now=LEASE_S) == [False]
    store.lookup(reader(), [key(1)], now=0.0)
    assert store.commit(reader(), [key(1)], [ref], now=1.0) == [True]
    assert store.commit(reader(), [key(1)], [ref], now=1.0) == [False]


def test_another_key_another_slot_or_another_generation_is_not_valid() -> None:
    store = make_store()
    one, two = put(store, 1, 2)
    older = BlockRef(one.block, one.generation - 1)
    for ref, asked in ((two, 1), (one, 2), (older, 1)):
        store.lookup(reader(), [key(1), key(2)], now=0.0)
        assert store.commit(reader(), [key(asked)], [ref], now=1.0) == [False]
    assert not store.has_leases


def test_a_block_that_was_not_looked_up_is_not_valid() -> None:
    store = make_store()
    one, two = put(store, 1, 2)
    store.lookup(reader(), [key(1)], now=0.0)
    assert store.commit(reader(), [key(1), key(2)], [one, two], now=1.0) == [True, False]


def test_a_slot_has_a_new_generation_with_each_use() -> None:
    store = make_store(num_slots=1)
    [first] = put(store, 1)
    [second] = put(store, 2)
    assert first.block == second.block
    assert second.generation > first.generation


def test_a_second_lookup_adds_to_the_lease_and_starts_its_time_anew() -> None:
    store = make_store()
    one, two = put(store, 1, 2)
    store.lookup(reader(), [key(1)], now=0.0)
    store.lookup(reader(), [key(1), key(2)], now=6.0)
    assert store.expire(12.0) == 0
    assert store.commit(reader(), [key(1), key(2)], [one, two], now=12.0) == [True, True]
    store.check_integrity()


def test_a_lease_that_nobody_ends_runs_out() -> None:
    store = make_store(num_slots=1)
    put(store, 1)
    store.lookup(reader(), [key(1)], now=0.0)
    assert store.expire(LEASE_S - 0.1) == 0
    assert store.expire(LEASE_S) == 1
    assert store.begin(key(2)) is not None
    store.check_integrity()


def test_above_the_watermark_entries_leave_ahead_of_need() -> None:
    evicted: list[bytes] = []
    store = make_store(num_slots=20, watermark=0.5, evicted=evicted)
    put(store, *range(10))
    store.evict_above_watermark()
    assert evicted == []
    put(store, 10, 11)
    store.evict_above_watermark()
    assert evicted == [key(9), key(8)]
    assert store.counts().num_free == 10


def test_hits_misses_and_evictions_are_counted() -> None:
    store = make_store(num_slots=2)
    put(store, 1, 2)
    assert found(store, [1, 2, 3]) == [1, 2]
    put(store, 4)
    counts = store.counts()
    assert (counts.num_hits, counts.num_misses, counts.num_evictions) == (2, 1, 1)
    assert (counts.num_objects, counts.num_incomplete, counts.num_leased, counts.num_free) == (2, 0, 0, 0)
