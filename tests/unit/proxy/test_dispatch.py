"""Who is sent where, and when: a little ahead, in order, within the limits."""

from __future__ import annotations

import asyncio

import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.request.lifecycle import Phase
from proxy.routing.room import MAX_UNTRANSFERRED
from tests.unit.proxy.conftest import Cluster, MakeCluster


async def prompts(cluster: Cluster, worker: str, count: int) -> list[str]:
    """The next ones that the worker is sent."""
    starts = [await cluster.worker(worker).next_start() for _ in range(count)]
    return [bytes(start.request.prompt_ids).decode() for start in starts]


async def queued(cluster: Cluster, count: int) -> None:
    """Waits until so many are left in the proxy's queue."""
    await cluster.until(lambda: cluster.metric("pdserve_requests_queued") == count)


async def reported(cluster: Cluster, **load: int) -> None:
    """The prefill worker's report is taken, and whoever may be sent because of it was sent."""
    mark = 1_000_000
    cluster.prefill.report(num_queued_tokens=mark, **load)
    await cluster.until(lambda: cluster.proxy.pool.prefill_links()[0].view().num_queued_tokens >= mark)
    await asyncio.sleep(0)


async def test_a_prefill_worker_has_few_waiting_and_the_rest_stay_in_order(cluster: Cluster) -> None:
    for name in "abcde":
        await cluster.submit(name)
    await queued(cluster, 3)
    assert await prompts(cluster, "prefill-0", 2) == ["a", "b"]
    await reported(cluster, num_running=2)  # none waits there any more
    await queued(cluster, 1)
    assert await prompts(cluster, "prefill-0", 2) == ["c", "d"]
    await reported(cluster, num_running=2, num_waiting=2)
    await queued(cluster, 1)
    assert cluster.prefill.starts.empty()


async def test_a_finished_prefill_makes_room_for_the_next(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(dispatch_ahead=1)
    await cluster.submit("a")
    await cluster.submit("b")
    start, _ = await cluster.starts()
    cluster.prefill.prefilled(start)
    assert bytes((await cluster.prefill.next_start()).request.prompt_ids) == b"b"


async def test_nothing_goes_to_a_decode_worker_that_does_not_take_over_what_was_computed_for_it(
    cluster: Cluster,
) -> None:
    requests = [await cluster.submit() for _ in range(MAX_UNTRANSFERRED)]
    decodes = []
    for _ in range(MAX_UNTRANSFERRED):
        prefill, decode = await cluster.starts()
        decodes.append(decode)
        cluster.prefill.prefilled(prefill)
    await cluster.until(lambda: all(request.phase is Phase.TRANSFERRING for request in requests))
    await cluster.submit()
    await queued(cluster, 1)
    cluster.decode.say(decodes[0], b"a")
    await cluster.starts()


async def test_a_mixed_worker_has_few_waiting_too(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, decode=0, mixed=1)
    for name in "abc":
        await cluster.submit(name)
    await queued(cluster, 1)
    assert await prompts(cluster, "mixed-0", 2) == ["a", "b"]


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(max_queued_requests=2, dispatch_ahead=1)
    requests = []
    for _ in range(3):
        requests.append(await cluster.submit())
        await asyncio.sleep(0)
    with pytest.raises(ApiError, match="2 requests") as failure:
        await cluster.submit()
    assert failure.value.code is ErrorCode.RESOURCE_EXHAUSTED
    assert failure.value.retry_after_s == 1
    assert cluster.metric("pdserve_rejected_total", reason="queue_full") == 1
    requests[2].cancel()
    await cluster.submit()


async def test_load_is_shared_also_between_two_reports(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=2, decode=2)
    for _ in range(4):
        await cluster.submit()
    await queued(cluster, 0)
    for worker in cluster.workers:
        assert len(await prompts(cluster, worker.name, 2)) == 2


async def test_the_less_loaded_worker_is_chosen(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=2, decode=2)
    cluster.worker("prefill-0").report(num_running=1, num_queued_tokens=4000)
    cluster.worker("decode-1").report(num_running=5)
    await cluster.until(lambda: any(x.view().num_queued_tokens for x in cluster.proxy.pool.prefill_links()))
    await cluster.until(lambda: any(x.view().num_requests for x in cluster.proxy.pool.decode_links()))
    await cluster.submit()
    await cluster.worker("prefill-1").next_start()
    await cluster.worker("decode-0").next_start()


async def test_without_a_decode_worker_nothing_is_admitted(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=0)
    with pytest.raises(ApiError) as failure:
        await cluster.submit()
    assert failure.value.code is ErrorCode.UNAVAILABLE
    assert cluster.metric("pdserve_rejected_total", reason="no_worker") == 1


async def test_queued_requests_wait_for_the_decode_worker_to_come_back(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, dispatch_ahead=1)
    await cluster.submit("a")
    await cluster.submit("b")
    await cluster.decode.next_start()
    await cluster.decode.restart()
    cluster.publish()
    assert bytes((await cluster.decode.next_start()).request.prompt_ids) == b"a"  # started before goes first
    cluster.decode.report(num_running=1)
    assert bytes((await cluster.decode.next_start()).request.prompt_ids) == b"b"


async def test_queued_requests_do_not_wait_for_ever(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, dispatch_ahead=1, recovery_timeout_s=0.05)
    await cluster.submit("a")
    waiting = await cluster.submit("b")
    await cluster.decode.next_start()
    await cluster.decode.stop()
    with pytest.raises(ApiError, match=r"0\.05 s"):
        await anext(waiting.events)
