"""Versions and subscribers."""

from __future__ import annotations

import asyncio

from cluster.fleet_worker import WorkerState
from cluster.membership import Member, Membership


def member(name: str) -> Member:
    return Member(name, f"{name}-i1", "decode", WorkerState.STARTING, None)


async def test_a_subscriber_sees_the_membership_at_once_and_then_each_change() -> None:
    membership = Membership()
    membership.publish((member("decode-0"),))
    snapshots = membership.subscribe()
    assert (await anext(snapshots)).members == (member("decode-0"),)
    waiting = asyncio.ensure_future(anext(snapshots))
    await asyncio.sleep(0)
    assert not waiting.done()
    membership.publish((member("decode-0"), member("decode-1")))
    snapshot = await waiting
    assert snapshot.version == 2
    assert len(snapshot.members) == 2


async def test_a_slow_subscriber_sees_only_the_newest() -> None:
    membership = Membership()
    membership.publish(())
    snapshots = membership.subscribe()
    await anext(snapshots)
    for i in range(5):
        membership.publish((member(f"decode-{i}"),))
    assert (await anext(snapshots)).members == (member("decode-4"),)


async def test_the_same_membership_again_is_no_change() -> None:
    membership = Membership()
    membership.publish((member("decode-0"),))
    membership.publish((member("decode-0"),))
    assert membership.snapshot.version == 1


async def test_an_empty_first_membership_is_published_and_nothing_before_it() -> None:
    membership = Membership()
    waiting = asyncio.ensure_future(anext(membership.subscribe()))
    await asyncio.sleep(0)
    assert not waiting.done()
    membership.publish(())
    assert (await waiting).members == ()
