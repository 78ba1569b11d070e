"""A bounded set of slots, each free, busy or in doubt."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from kv_transfer.config import TransferConfig
from kv_transfer.messages import FailureReason, HandoffError
from kv_transfer.staging import Slot, SlotCounts, StagingRing

BLOCK_BYTES = 100


@pytest.fixture
def exhausted() -> list[str]:
    return []


@pytest.fixture
def ring(exhausted: list[str]) -> StagingRing:
    config = TransferConfig(staging_slots=3, staging_slot_bytes=250, max_quarantined_slots=1)
    return StagingRing(config, BLOCK_BYTES, "cpu", exhausted.append)


async def settle() -> None:
    """Lets callbacks from other threads in."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_slot_holds_as_many_whole_blocks_as_fit(ring: StagingRing) -> None:
    assert ring.blocks_per_slot == 2
    assert ring.memory.shape == (3, 250)


def test_a_block_that_fits_no_slot_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"staging_slot_bytes \(99\).*\(100\).*block_size"):
        StagingRing(TransferConfig(staging_slot_bytes=99), BLOCK_BYTES, "cpu", lambda _: None)


async def test_slots_are_handed_out_once_and_in_the_order_asked(ring: StagingRing) -> None:
    slots = [await ring.acquire(1.0) for _ in range(3)]
    assert {slot.index for slot in slots} == {0, 1, 2}
    waiting = [asyncio.create_task(ring.acquire(1.0)) for _ in range(2)]
    await settle()
    ring.release(slots[1])
    ring.release(slots[0])
    assert [(await task).index for task in waiting] == [1, 0]


async def test_of_those_who_wait_the_lowest_in_order_gets_the_next_slot_then_the_first_come(ring: StagingRing) -> None:
    slots = [await ring.acquire(1.0) for _ in range(3)]
    served: list[str] = []

    async def wait(name: str, order: float) -> None:
        await ring.acquire(1.0, order)
        served.append(name)

    waiting = [
        asyncio.create_task(wait(name, order)) for name, order in (("d", 9.0), ("b", 1.0), ("c", 1.0), ("a", -5.0))
    ]
    await settle()
    for _ in range(4):
        ring.release(slots[0])
        await settle()
    await asyncio.wait(waiting)
    assert served == ["a", "b", "c", "d"]


async def test_a_slot_given_to_a_waiter_that_ends_at_that_moment_goes_to_the_next(ring: StagingRing) -> None:
    slots = [await ring.acquire(1.0) for _ in range(3)]
    first = asyncio.create_task(ring.acquire(1.0))
    second = asyncio.create_task(ring.acquire(1.0))
    await settle()
    ring.release(slots[0])
    first.cancel()  # before it could take the slot
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert second.result() is slots[0]
    assert ring.counts() == SlotCounts(free=0, busy=3, quarantined=0)


async def test_waiting_for_a_slot_has_a_deadline(ring: StagingRing) -> None:
    for _ in range(3):
        await ring.acquire(1.0)
    with pytest.raises(HandoffError, match="3 busy") as caught:
        await ring.acquire(0.01)
    assert caught.value.reason is FailureReason.STAGING_TIMEOUT
    ring.release(Slot(0, ring.memory[0]))
    assert ring.counts() == SlotCounts(free=1, busy=2, quarantined=0)  # nobody waits any more


async def test_a_waiter_that_is_cancelled_takes_no_slot(ring: StagingRing) -> None:
    slots = [await ring.acquire(1.0) for _ in range(3)]
    waiting = asyncio.create_task(ring.acquire(1.0))
    await settle()
    waiting.cancel()
    ring.release(slots[0])
    await asyncio.wait([waiting])
    assert ring.counts() == SlotCounts(free=1, busy=2, quarantined=0)


async def test_a_quarantined_slot_comes_back_when_its_read_has_ended(ring: StagingRing) -> None:
    slot = await ring.acquire(1.0)
    read: Future[None] = Future()
    ring.quarantine(slot, read)
    assert ring.counts() == SlotCounts(free=2, busy=0, quarantined=1)
    read.set_exception(OSError("the peer died"))
    await settle()
    assert ring.counts() == SlotCounts(free=3, busy=0, quarantined=0)


async def test_a_slot_in_use_comes_back_when_its_use_has_ended(ring: StagingRing) -> None:
    slot = await ring.acquire(1.0)
    use: Future[None] = Future()
    ring.release_after(slot, use, in_doubt_after_s=60.0)
    assert ring.counts() == SlotCounts(free=2, busy=1, quarantined=0)
    use.set_result(None)
    await settle()
    assert ring.counts() == SlotCounts(free=3, busy=0, quarantined=0)


async def test_a_use_that_lasts_too_long_is_in_doubt(ring: StagingRing) -> None:
    slot = await ring.acquire(1.0)
    use: Future[None] = Future()
    ring.release_after(slot, use, in_doubt_after_s=0.0)
    await settle()
    assert ring.counts() == SlotCounts(free=2, busy=0, quarantined=1)
    use.set_result(None)
    await settle()
    assert ring.counts() == SlotCounts(free=3, busy=0, quarantined=0)


async def test_too_many_slots_in_doubt_are_reported_once(ring: StagingRing, exhausted: list[str]) -> None:
    slots: list[Slot] = [await ring.acquire(1.0) for _ in range(3)]
    ring.quarantine(slots[0], Future())
    assert exhausted == []
    ring.quarantine(slots[1], Future())
    ring.quarantine(slots[2], Future())
    assert exhausted == ["2 staging slots are in doubt (max_quarantined_slots)"]
