from __future__ import annotations

import pytest

from engine.block_pool import BlockCounts, BlockPool, IntegrityError


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.num_free == 4
    blocks = pool.allocate(4)
    assert blocks is not None
    assert sorted(blocks) == [0, 1, 2, 3]


def test_every_allocation_is_a_new_generation() -> None:
    pool = BlockPool(1)
    seen = []
    for _ in range(3):
        blocks = pool.allocate(1)
        assert blocks is not None
        seen.append(pool.generation(blocks[0]))
        pool.release(blocks)
    assert seen == [1, 2, 3]


def test_a_cached_block_keeps_its_generation_until_it_is_evicted() -> None:
    pool = BlockPool(2)
    first = pool.allocate(1) or []
    pool.publish(first[0], b"a")
    generation = pool.generation(first[0])
    pool.release(first)
    assert pool.lookup([b"a"]) == first
    assert pool.generation(first[0]) == generation
    assert pool.allocate(2) is not None
    assert pool.lookup([b"a"]) == []
    assert pool.generation(first[0]) == generation + 1


def test_the_least_recently_used_block_is_evicted_first_and_a_prefix_last() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3) or []
    for block, block_hash in zip(blocks, [b"1", b"2", b"3"], strict=True):
        pool.publish(block, block_hash)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.lookup([b"1", b"2", b"3"]) == blocks[:2]


def test_a_leased_block_is_not_handed_out_after_its_release() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2) or []
    pool.lease(blocks)
    pool.release(blocks)
    assert pool.counts() == BlockCounts(free=0, used=0, cached=0, leased=2)
    assert pool.allocate(1) is None
    pool.unlease(blocks)
    assert pool.counts() == BlockCounts(free=2, used=0, cached=0, leased=0)


def test_one_content_is_cached_once() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2) or []
    pool.publish(blocks[0], b"a")
    pool.publish(blocks[1], b"a")
    pool.release(blocks)
    assert pool.counts() == BlockCounts(free=1, used=0, cached=1, leased=0)
    pool.check_integrity([])


def test_a_release_too_many_is_an_integrity_error() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1) or []
    pool.release(blocks)
    with pytest.raises(IntegrityError, match="more often than acquired"):
        pool.release(blocks)


def test_a_reference_nobody_holds_is_found() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(IntegrityError, match="reference count"):
        pool.check_integrity([])
