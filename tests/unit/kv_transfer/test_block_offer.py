"""Blocks offered to the pool: they keep their content for as long as the offer lasts, and not a moment longer."""

from __future__ import annotations

from engine.block_pool import BlockPool
from kv_transfer.awake import AwakeVotes
from kv_transfer.block_offer import BlockOffers
from kv_transfer.messages import BlockRef, Ticket

LEASE_S = 10.0


def key(n: int) -> bytes:
    return bytes([n]) * 16


def cached_pool(num_blocks: int = 8, num_cached: int = 4) -> BlockPool:
    pool = BlockPool(num_blocks)
    blocks = pool.allocate(num_cached)
    assert blocks is not None
    for n, block in enumerate(blocks):
        pool.publish(block, key(n))
    pool.release(blocks)
    return pool


def make_offers(pool: BlockPool, awake: list[bool] | None = None, max_share: float = 1.0) -> BlockOffers:
    told: list[bool] = [] if awake is None else awake
    return BlockOffers(pool, LEASE_S, told.append, max_share)


def test_what_the_prefix_cache_has_is_offered_and_stays() -> None:
    pool = cached_pool(num_blocks=4)
    offers = make_offers(pool)
    offer = offers.offer([key(0), key(9), key(1)], now=0.0)
    assert offer is not None
    assert offer.keys == (key(0), key(1))
    assert pool.allocate(3) is None
    assert pool.allocate(2) is not None
    assert offers.commit(offer.ticket, offer.refs, now=LEASE_S - 1) == [True, True]
    pool.check_integrity()


def test_a_closed_offer_lets_its_blocks_go_and_is_not_valid() -> None:
    pool = cached_pool(num_blocks=4)
    offers = make_offers(pool)
    offer = offers.offer([key(0)], now=0.0)
    assert offer is not None
    offers.close(offer.ticket, now=1.0)
    offers.close(offer.ticket, now=1.0)
    assert offers.commit(offer.ticket, offer.refs, now=1.0) == [False]
    assert pool.allocate(4) is not None
    pool.check_integrity()


def test_an_offer_that_nobody_closes_runs_out() -> None:
    pool = cached_pool()
    offers = make_offers(pool)
    offer = offers.offer([key(0)], now=0.0)
    assert offer is not None
    assert offers.commit(offer.ticket, offer.refs, now=LEASE_S) == [False]
    offers.advance(LEASE_S)
    assert pool.counts().leased == 0
    pool.check_integrity()


def test_blocks_that_were_not_offered_are_not_valid() -> None:
    pool = cached_pool()
    offers = make_offers(pool)
    offer = offers.offer([key(0)], now=0.0)
    assert offer is not None
    [ref] = offer.refs
    wrong = [BlockRef(ref.block, ref.generation + 1), BlockRef(ref.block + 1, ref.generation)]
    assert offers.commit(offer.ticket, [ref, *wrong], now=1.0) == [True, False, False]
    assert offers.commit(Ticket(bytes(16), 1), [ref], now=1.0) == [False]


def test_the_pool_never_holds_more_than_its_share() -> None:
    offers = make_offers(cached_pool(num_blocks=8), max_share=0.25)
    first = offers.offer([key(n) for n in range(4)], now=0.0)
    assert first is not None
    assert first.keys == (key(0), key(1))
    assert offers.offer([key(2)], now=0.0) is None
    offers.close(first.ticket, now=1.0)
    assert offers.offer([key(2)], now=1.0) is not None


def test_nothing_that_is_not_cached_is_offered() -> None:
    offers = make_offers(cached_pool())
    assert offers.offer([key(9)], now=0.0) is None
    assert offers.offer([], now=0.0) is None


def test_a_block_can_be_offered_twice() -> None:
    pool = cached_pool()
    offers = make_offers(pool)
    one, two = offers.offer([key(0)], now=0.0), offers.offer([key(0)], now=0.0)
    assert one is not None
    assert two is not None
    offers.close(one.ticket, now=1.0)
    assert offers.commit(two.ticket, two.refs, now=1.0) == [True]
    offers.close(two.ticket, now=1.0)
    assert pool.counts().leased == 0


def test_the_transport_is_awake_until_late_reads_must_have_ended() -> None:
    awake: list[bool] = []
    offers = make_offers(cached_pool(), awake)
    offer = offers.offer([key(0)], now=0.0)
    assert offer is not None
    assert awake == [True]
    offers.close(offer.ticket, now=1.0)
    offers.advance(LEASE_S)
    assert awake == [True]
    offers.advance(LEASE_S + 1.0)
    assert awake == [True, False]


def test_the_transport_is_awake_while_one_voter_wants_it() -> None:
    awake: list[bool] = []
    votes = AwakeVotes(awake.append)
    one, two = votes.voter(), votes.voter()
    one(False)
    one(True)
    two(True)
    one(False)
    assert awake == [True]
    two(False)
    assert awake == [True, False]
