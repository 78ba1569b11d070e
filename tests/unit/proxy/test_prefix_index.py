"""The index of workers' caches: what it misses costs hits, what it is told twice costs nothing, and it has a bound."""

from __future__ import annotations

import random

from cluster.cache_log import CacheLog
from engine.block_hash import DIGEST_BYTES
from engine.block_pool import CacheChange
from proxy.routing.prefix_index import PrefixIndex
from rpc import worker_pb2

PROMPT = [n.to_bytes(DIGEST_BYTES, "big") for n in range(1, 6)]


def update(after: int, through: int, stored: list[bytes], evicted: list[bytes] | None = None) -> worker_pb2.CacheUpdate:
    return worker_pb2.CacheUpdate(
        after=after, through=through, stored=b"".join(stored), evicted=b"".join(evicted or [])
    )


def snapshot(through: int, stored: list[bytes]) -> worker_pb2.CacheUpdate:
    return worker_pb2.CacheUpdate(through=through, stored=b"".join(stored), is_snapshot=True)


def test_a_prompt_is_cached_as_far_as_its_first_blocks_are_held() -> None:
    index = PrefixIndex(100)
    assert index.apply("a", update(0, 4, [*PROMPT[:2], PROMPT[3], PROMPT[4]]))
    assert index.num_cached("a", PROMPT) == 2
    assert index.num_cached("b", PROMPT) == 0
    assert index.apply("a", update(4, 5, [PROMPT[2]]))
    assert index.num_cached("a", PROMPT) == 5
    assert index.apply("a", update(5, 6, [], [PROMPT[1]]))
    assert index.num_cached("a", PROMPT) == 1


def test_an_update_after_a_gap_is_not_taken_in_and_one_again_changes_nothing() -> None:
    index = PrefixIndex(100)
    assert index.apply("a", update(0, 2, PROMPT[:2]))
    assert not index.apply("a", update(3, 4, [PROMPT[2]]))
    assert (index.num_changes("a"), index.num_cached("a", PROMPT)) == (2, 2)
    assert index.apply("a", update(2, 3, [], [PROMPT[0]]))
    assert index.apply("a", update(0, 2, PROMPT[:2]))  # late
    assert (index.num_changes("a"), index.num_cached("a", PROMPT), index.num_blocks) == (3, 0, 1)


def test_an_update_that_begins_before_what_is_known_is_taken_in() -> None:
    index = PrefixIndex(100)
    index.apply("a", update(0, 2, PROMPT[:2]))
    assert index.apply("a", update(1, 4, PROMPT[1:4]))
    assert (index.num_changes("a"), index.num_cached("a", PROMPT)) == (4, 4)


def test_a_snapshot_replaces_what_was_known() -> None:
    index = PrefixIndex(100)
    index.apply("a", update(0, 2, PROMPT[3:]))
    assert index.apply("a", snapshot(9, PROMPT[:2]))
    assert (index.num_changes("a"), index.num_cached("a", PROMPT), index.num_blocks) == (9, 2, 2)


def test_a_worker_that_is_gone_takes_its_entries_along() -> None:
    index = PrefixIndex(100)
    index.apply("a", update(0, 5, PROMPT))
    index.apply("b", update(0, 2, PROMPT[:2]))
    index.forget("a")
    assert (index.num_blocks, index.num_changes("a"), index.num_cached("a", PROMPT)) == (2, 0, 0)
    assert index.num_cached("b", PROMPT) == 2


def test_at_its_bound_it_forgets_the_end_of_what_was_used_longest_ago_of_who_holds_most() -> None:
    others = [n.to_bytes(DIGEST_BYTES, "big") for n in range(10, 14)]
    index = PrefixIndex(8)
    index.apply("b", update(0, 1, PROMPT[:1]))
    index.apply("a", update(0, 3, PROMPT[:3]))
    index.apply("a", update(3, 7, others))
    index.used("a", PROMPT[:3])
    index.apply("a", update(7, 8, PROMPT[3:4]))
    assert (index.num_blocks, index.num_evicted) == (8, 1)
    assert index.num_cached("a", others) == 3
    assert (index.num_cached("a", PROMPT), index.num_cached("b", PROMPT)) == (4, 1)


def test_a_snapshot_larger_than_the_bound_keeps_it() -> None:
    index = PrefixIndex(3)
    index.apply("a", snapshot(5, PROMPT))
    assert index.num_blocks == 3
    assert index.num_cached("a", PROMPT) == 3


def test_whatever_is_lost_repeated_or_late_the_index_never_says_more_than_was_once_held_and_catches_up() -> None:
    draw = random.Random(4)
    hashes = [n.to_bytes(DIGEST_BYTES, "big") for n in range(12)]
    for _ in range(200):
        log, index = CacheLog(max_changes=8), PrefixIndex(1000)
        held: set[bytes] = set()
        told, sent = 0, []
        for sequence in range(1, 40):
            block_hash = draw.choice(hashes)
            is_stored = block_hash not in held
            held.symmetric_difference_update({block_hash})
            log.append([CacheChange(sequence, block_hash, is_stored)])
            if draw.random() < 0.4:
                sent.append(log.since(told))
                told = log.num_changes
            if sent and draw.random() < 0.5:
                message = sent.pop(draw.randrange(len(sent)))
                if draw.random() < 0.3:
                    continue  # lost
                if not index.apply("w", message):
                    told = index.num_changes("w")  # the proxy asks again
                if draw.random() < 0.3:
                    index.apply("w", message)
        index.apply("w", log.since(index.num_changes("w")))
        assert {h for h in hashes if index.num_cached("w", [h])} == held
        assert index.num_blocks == len(held)
