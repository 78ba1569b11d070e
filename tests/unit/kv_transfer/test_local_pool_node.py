"""A pool node: what it pulls, what readers find, and what is left when either side goes away in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kv_transfer.messages import FailureReason, HandoffError, PeerInfo
from tests.unit.kv_transfer.pair import transfer_config
from tests.unit.kv_transfer.pool_rig import (
    HangingDisk,
    OfferingSide,
    PoolRig,
    compatibility,
    key,
    open_disk,
    reader,
    until,
)

RigFactory = Callable[..., PoolRig]


@pytest.fixture
async def new_rig() -> AsyncIterator[RigFactory]:
    rigs: list[PoolRig] = []

    def make(**fields: object) -> PoolRig:
        rigs.append(PoolRig(**fields))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        await rig.stop()


@pytest.fixture
def rig(new_rig: RigFactory) -> PoolRig:
    return new_rig()


@pytest.fixture
def worker(rig: PoolRig) -> OfferingSide:
    return rig.worker()


async def test_offered_blocks_are_found_with_their_bytes(rig: PoolRig, worker: OfferingSide) -> None:
    assert await rig.fill(worker, 1, 2, 3, 4, 5) == [True] * 5
    assert await rig.read(5, 9, 1) == [5, None, 1]
    await rig.check_nothing_is_held()


async def test_what_the_node_has_is_not_pulled_again(rig: PoolRig, worker: OfferingSide) -> None:
    await rig.fill(worker, 1, 2)
    num_reads = rig.transport.num_reads
    assert await rig.fill(rig.worker("P2"), 1, 2) == [True, True]
    assert rig.transport.num_reads == num_reads


async def test_the_worker_is_introduced_once(rig: PoolRig, worker: OfferingSide) -> None:
    await rig.fill(worker, 1)
    await rig.fill(worker, 2)
    assert worker.num_handshakes == 1


async def test_a_block_that_the_source_does_not_call_valid_is_never_found(rig: PoolRig, worker: OfferingSide) -> None:
    offer = worker.offer(1, 2)
    rig.transport.stall()
    offering = asyncio.create_task(rig.node.offer(worker.source(offer), offer.keys, offer.refs))
    await until(lambda: rig.transport.num_reads > 0)
    worker.offers.close(offer.ticket, now=0.0)
    worker.cache.as_bytes().fill_(99)  # the worker uses its blocks for something else
    rig.transport.resume()
    assert await offering == [False, False]
    assert await rig.read(1, 2) == [None, None]
    await rig.check_nothing_is_held()


async def test_readers_do_not_find_what_is_on_its_way(rig: PoolRig, worker: OfferingSide) -> None:
    rig.transport.stall()
    offering = asyncio.create_task(rig.fill(worker, 1))
    await until(lambda: rig.transport.num_reads > 0)
    assert await rig.read(1) == [None]
    rig.transport.resume()
    assert await offering == [True]
    assert await rig.read(1) == [1]


async def test_two_sources_of_the_same_block_bring_it_once(rig: PoolRig, worker: OfferingSide) -> None:
    rig.transport.stall()
    first = asyncio.create_task(rig.fill(worker, 1))
    await until(lambda: rig.transport.num_reads > 0)
    assert await rig.fill(rig.worker("P2"), 1) == [False]
    rig.transport.resume()
    assert await first == [True]
    await rig.check_nothing_is_held()


async def test_a_read_that_fails_leaves_nothing_and_the_next_offer_works(rig: PoolRig, worker: OfferingSide) -> None:
    rig.transport.fail_next()
    assert await rig.fill(worker, 1, 2) == [False, False]
    await rig.check_nothing_is_held()
    assert await rig.fill(worker, 1, 2) == [True, True]
    assert (rig.node.num_failed_offers, worker.num_handshakes) == (1, 2)


async def test_a_source_that_dies_after_its_first_blocks_leaves_those(rig: PoolRig, worker: OfferingSide) -> None:
    rig.transport.pass_next()
    rig.transport.fail_next()
    assert await rig.fill(worker, 1, 2, 3, 4) == [True, True, False, False]
    await rig.check_nothing_is_held()


async def test_a_source_that_cannot_be_reached_is_given_up_at_once(rig: PoolRig, worker: OfferingSide) -> None:
    worker.is_away = True
    assert await rig.fill(worker, 1) == [False]
    await rig.check_nothing_is_held()


async def test_a_source_that_is_silent_is_given_up_at_the_deadline(new_rig: RigFactory) -> None:
    rig = new_rig(transfer=transfer_config(handshake_timeout_s=0.02, verdict_timeout_s=0.02))
    worker = rig.worker()
    worker.answers.clear()
    assert await rig.fill(worker, 1) == [False]
    worker.answers.set()
    assert await rig.fill(worker, 1) == [True]
    worker.answers.clear()
    assert await rig.fill(worker, 2) == [False]
    await rig.check_nothing_is_held()


async def test_a_read_that_never_ends_costs_a_slot_of_staging_until_it_does(new_rig: RigFactory) -> None:
    rig = new_rig(transfer=transfer_config(transfer_timeout_s=0.02))
    worker = rig.worker()
    rig.transport.stall()
    assert await rig.fill(worker, 1) == [False]
    assert rig.ring.counts().quarantined == 1
    rig.transport.stop_stalling()
    assert await rig.fill(worker, 1) == [True]
    worker.cache.as_bytes().fill_(99)
    rig.transport.resume()  # late bytes go to staging only
    await rig.check_nothing_is_held()
    assert await rig.read(1) == [1]


async def test_an_offer_that_takes_too_long_is_given_up(new_rig: RigFactory) -> None:
    rig = new_rig(offer_timeout_s=0.02)
    rig.transport.stall()
    assert await rig.fill(rig.worker(), 1) == [False]
    rig.transport.resume()
    await rig.check_nothing_is_held()


async def test_an_offer_whose_caller_goes_away_leaves_nothing(rig: PoolRig, worker: OfferingSide) -> None:
    rig.transport.stall()
    offering = asyncio.create_task(rig.fill(worker, 1, 2, 3))
    await until(lambda: rig.transport.num_reads > 0)
    offering.cancel()
    await asyncio.wait([offering])
    rig.transport.resume()
    await rig.check_nothing_is_held()
    assert await rig.read(1, 2, 3) == [None, None, None]


async def test_more_offers_than_the_node_has_time_for_are_refused_at_once(new_rig: RigFactory) -> None:
    rig = new_rig(max_offers=1)
    worker = rig.worker()
    rig.transport.stall()
    first = asyncio.create_task(rig.fill(worker, 1))
    await until(lambda: rig.transport.num_reads > 0)
    assert await rig.fill(worker, 2) == [False]
    rig.transport.resume()
    assert await first == [True]


async def test_a_full_node_evicts_what_nobody_reads_and_refuses_when_all_is_read(new_rig: RigFactory) -> None:
    rig = new_rig(num_slots=2)
    worker = rig.worker()
    await rig.fill(worker, 1, 2)
    await rig.node.lookup(reader(1), [key(1)])
    assert await rig.fill(worker, 3) == [True]
    await rig.node.lookup(reader(1), [key(3)])
    assert await rig.fill(worker, 4) == [False]
    await rig.node.close(reader(1))
    assert await rig.fill(worker, 4) == [True]
    await rig.check_nothing_is_held()


async def test_a_prompt_larger_than_the_node_fills_it_and_harms_nothing(new_rig: RigFactory) -> None:
    rig = new_rig(num_slots=3)
    await rig.fill(rig.worker(), *range(10))
    assert sum(content is not None for content in await rig.read(*range(10))) == 3
    await rig.check_nothing_is_held()


@pytest.mark.parametrize("field", ["model_fingerprint", "kv_dtype", "block_size", "protocol_version"])
async def test_a_worker_of_another_kind_is_refused_by_the_name_of_the_field(rig: PoolRig, field: str) -> None:
    other = compatibility(**{field: 7 if field in ("block_size", "protocol_version") else "other"})
    with pytest.raises(HandoffError, match=field) as refusal:
        await rig.node.handshake(PeerInfo("D", other), "pool")
    assert refusal.value.reason is FailureReason.INCOMPATIBLE


async def test_a_worker_that_means_another_start_of_the_node_is_refused(rig: PoolRig) -> None:
    with pytest.raises(HandoffError) as refusal:
        await rig.node.handshake(PeerInfo("D", compatibility()), "pool-before")
    assert refusal.value.reason is FailureReason.PEER_UNAVAILABLE


async def test_blocks_of_another_kind_are_not_pulled(rig: PoolRig, worker: OfferingSide) -> None:
    worker.info = PeerInfo("P", compatibility(model_fingerprint="other"), worker.info.transports)
    assert await rig.fill(worker, 1) == [False]
    assert await rig.read(1) == [None]


async def test_the_node_is_awake_while_somebody_may_be_reading(rig: PoolRig, worker: OfferingSide) -> None:
    await rig.fill(worker, 1)
    assert await rig.read(1) == [1]
    assert rig.awake == [True, False]
    await rig.node.lookup(reader(), [key(1)])
    await rig.node.close(reader())
    assert rig.awake == [True, False, True]  # a read that was given up may still run
    rig.now += rig.transfer.lease_s
    await rig.node.close(reader())
    assert rig.awake == [True, False, True, False]


async def test_a_source_that_rests_is_forgotten(new_rig: RigFactory) -> None:
    rig = new_rig(transfer=transfer_config(idle_peer_s=0.01))
    worker = rig.worker()
    await rig.fill(worker, 1)
    await asyncio.sleep(0.02)
    await rig.sources.forget_idle()
    await rig.fill(worker, 2)
    assert worker.num_handshakes == 2


async def test_what_leaves_memory_comes_back_from_the_disk(new_rig: RigFactory, tmp_path: Path) -> None:
    rig = new_rig(num_slots=2, disk=open_disk(tmp_path, max_blocks=8))
    worker = rig.worker()
    for n in range(5):
        await rig.fill(worker, n)
    assert await rig.read(0) == [0]
    assert await rig.read(3, 1) == [3, 1]
    await rig.check_nothing_is_held()


async def test_a_disk_that_hangs_is_a_miss_in_time(new_rig: RigFactory, tmp_path: Path) -> None:
    disk = open_disk(tmp_path, 8, HangingDisk)
    rig = new_rig(num_slots=1, disk=disk, disk_timeout_s=0.02)
    worker = rig.worker()
    await rig.fill(worker, 1)
    await rig.fill(worker, 2)
    assert disk.has(key(1))
    assert await rig.read(1, 2) == [None, 2]
    assert await rig.fill(worker, 3) == [True]
