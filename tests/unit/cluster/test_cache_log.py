"""What a proxy is told of a worker's cache, and that a proxy which applies it ends up with what the cache holds."""

from __future__ import annotations

import random

from cluster.cache_log import CacheLog
from engine.block_hash import DIGEST_BYTES
from engine.block_pool import BlockPool, CacheChange


def block_hash(n: int) -> bytes:
    return n.to_bytes(DIGEST_BYTES, "big")


def numbers(hashes: bytes) -> list[int]:
    parts = [hashes[i : i + DIGEST_BYTES] for i in range(0, len(hashes), DIGEST_BYTES)]
    return [int.from_bytes(part, "big") for part in parts]


def log_of(*changes: int, max_changes: int = 100) -> CacheLog:
    """Stores block n, or evicts it for -n."""
    log = CacheLog(max_changes)
    log.append(CacheChange(i, block_hash(abs(n)), n > 0) for i, n in enumerate(changes, start=1))
    return log


def test_who_missed_some_changes_is_told_those() -> None:
    update = log_of(1, 2, 3, -1).since(2)
    assert (update.after, update.through, update.is_snapshot) == (2, 4, False)
    assert (numbers(update.stored), numbers(update.evicted)) == ([3], [1])


def test_of_a_block_that_came_and_went_the_last_change_is_told() -> None:
    update = log_of(1, -1, 2, -2, 2).since(0)
    assert (numbers(update.stored), numbers(update.evicted)) == ([2], [1])


def test_who_missed_more_than_is_remembered_is_told_everything() -> None:
    log = log_of(1, 2, 3, -1, max_changes=2)
    assert not log.since(2).is_snapshot
    update = log.since(1)
    assert (update.is_snapshot, update.through, numbers(update.stored)) == (True, 4, [2, 3])


def test_who_claims_to_know_changes_that_never_were_is_told_everything() -> None:
    assert log_of(1).since(7).is_snapshot


def test_a_pool_announces_exactly_what_lookup_finds() -> None:
    pool, log = BlockPool(8), CacheLog(1000)
    pool.subscribe(lambda change: log.append([change]))
    draw = random.Random(1)
    known: set[int] = set()
    told = 0
    for _ in range(300):
        blocks = pool.allocate(draw.randint(1, 3)) or []
        for block in blocks:
            if draw.random() < 0.7:
                pool.publish(block, block_hash(draw.randint(1, 20)))
        pool.release(blocks)
        update = log.since(told)
        told = update.through
        known = (known - set(numbers(update.evicted))) | set(numbers(update.stored))
        assert known == {n for n in range(1, 21) if pool.lookup([block_hash(n)])}
    assert told == log.num_changes > 300


def test_a_pool_without_a_prefix_cache_announces_nothing() -> None:
    pool = BlockPool(2, enable_prefix_caching=False)
    changes: list[CacheChange] = []
    pool.subscribe(changes.append)
    pool.publish(pool.allocate(1)[0], block_hash(1))  # type: ignore[index]
    assert not changes
