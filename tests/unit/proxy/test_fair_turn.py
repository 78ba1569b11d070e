"""Whose turn it is: tenants in a circle, a tenant's own as they came, and nobody who has gone."""

from __future__ import annotations

import asyncio

from proxy.grammar.fair_turn import FairTurn


async def test_tenants_take_turns_however_many_one_has_waiting() -> None:
    turn, order = FairTurn(), []

    async def work(name: str) -> None:
        await turn.acquire(name[0])
        order.append(name)
        await asyncio.sleep(0)
        turn.release()

    await asyncio.gather(*(work(name) for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1")))
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_who_gave_up_waiting_gets_no_turn_and_loses_none() -> None:
    turn = FairTurn()
    await turn.acquire("a")
    gone, waiting = (asyncio.create_task(turn.acquire(tenant)) for tenant in "bc")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    turn.release()
    async with asyncio.timeout(5):
        await waiting


async def test_who_is_cancelled_just_when_it_got_its_turn_passes_it_on() -> None:
    turn = FairTurn()
    await turn.acquire("a")
    gone, waiting = (asyncio.create_task(turn.acquire(tenant)) for tenant in "bc")
    await asyncio.sleep(0)
    turn.release()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    async with asyncio.timeout(5):
        await waiting
    turn.release()
    async with asyncio.timeout(5):
        await turn.acquire("d")
