"""Turns to read from one peer: how many, in which order, and that none is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from kv_transfer.messages import FailureReason, HandoffError
from kv_transfer.read_turns import ReadTurns
from tests.unit.kv_transfer.pair import transfer_config


def turns(limit: int, **fields: object) -> ReadTurns:
    return ReadTurns(transfer_config(max_quarantined_slots=limit, **fields))


async def test_a_read_in_doubt_keeps_its_turn_until_it_ends() -> None:
    one = turns(1, reserve_timeout_s=0.01)
    read: Future[None] = Future()
    await one.take()
    one.give_back_after(read)
    with pytest.raises(HandoffError, match="other reads from this peer did not end") as caught:
        await one.take()
    assert caught.value.reason is FailureReason.TRANSFER_TIMEOUT
    read.set_exception(OSError("late"))
    await asyncio.sleep(0)
    await one.take()


async def test_a_read_that_never_ends_stops_the_others_only_for_a_while() -> None:
    one = turns(1, in_doubt_s=0.01)
    read: Future[None] = Future()
    await one.take()
    one.give_back_after(read)
    await one.take()
    read.set_result(None)  # it does so after all: its turn is not given back twice
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await one.take()


async def test_turns_go_by_order_then_by_arrival() -> None:
    one = turns(1)
    await one.take()
    taken: list[int] = []

    async def take(number: int, order: float) -> None:
        await one.take(order)
        taken.append(number)
        one.give_back()

    tasks = [asyncio.create_task(take(number, order)) for number, order in enumerate([2.0, 1.0, 2.0, 0.0])]
    await asyncio.sleep(0)
    one.give_back()
    await asyncio.gather(*tasks)
    assert taken == [3, 1, 0, 2]


async def test_a_turn_that_comes_too_late_goes_to_the_next() -> None:
    one = turns(1)
    await one.take()
    gone, waits = asyncio.create_task(one.take()), asyncio.create_task(one.take())
    await asyncio.sleep(0)
    one.give_back()
    gone.cancel()
    await waits
