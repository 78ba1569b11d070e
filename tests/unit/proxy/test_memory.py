"""What ended leaves no objects behind: after six hundred requests, many of them cancelled, as many as after two."""

from __future__ import annotations

import gc

from proxy.routing.queue import RequestQueue
from tests.unit.proxy.conftest import Cluster, collect


async def serve(cluster: Cluster, count: int, first: int) -> None:
    """Random enough prompts; a third is cancelled, at three moments."""
    for number in range(first, first + count):
        choice = await cluster.submit(f"prompt {number * 7919 % 10_007}")
        if number % 9 == 0:
            choice.cancel()
            continue
        _, decode = await cluster.starts()
        if number % 9 == 3:
            choice.cancel()
            continue
        cluster.decode.say(decode, b"ab")
        if number % 9 == 6:
            await anext(choice.events)
            choice.cancel()
            continue
        cluster.decode.say(decode, b"c", index=2, finish="length")
        assert (await collect(choice))[0] == "abc"
    while not cluster.prefill.starts.empty():
        await cluster.prefill.next_start()


def num_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


async def test_ended_requests_leave_no_objects_behind(cluster: Cluster) -> None:
    """Field report D47."""
    await serve(cluster, 200, 0)
    after_200 = num_objects()
    await serve(cluster, 400, 200)
    assert num_objects() < after_200 * 1.02
    queue: RequestQueue[object] = cluster.proxy._dispatcher.queue  # type: ignore[assignment]
    assert (len(queue), queue.room.requests.total, queue.room.tokens.total) == (0, 0, 0)
    assert not queue._running
