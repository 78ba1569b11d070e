"""A client that goes away, or is too slow, costs the workers nothing more, in whatever phase its request is."""

from __future__ import annotations

import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.request.lifecycle import Phase
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect


@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.TRANSFERRING, Phase.DECODING])
async def test_a_cancelled_request_is_aborted_on_both_workers(cluster: Cluster, phase: Phase) -> None:
    request = await cluster.submit()
    prefill, decode = await cluster.starts()
    if phase is Phase.TRANSFERRING:
        cluster.prefill.prefilled(prefill)
    if phase is Phase.DECODING:
        cluster.decode.say(decode, b"a")
    await cluster.until(lambda: request.phase is phase)
    request.cancel()
    assert (await cluster.decode.next_abort()).request_id == decode.request.request_id
    if phase is not Phase.DECODING:  # then the prefill worker has nothing of it any more
        assert (await cluster.prefill.next_abort()).request_id == decode.request.request_id
    with pytest.raises(ApiError) as failure:
        await collect(request)
    assert failure.value.code is ErrorCode.CANCELLED
    assert cluster.metric("pdserve_cancelled_total", phase=phase.value) == 1
    assert cluster.metric("pdserve_requests_in_flight") == 0


async def test_a_cancelled_request_leaves_the_queue(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(dispatch_ahead=1)
    await cluster.submit()
    waiting = await cluster.submit()
    await cluster.starts()
    assert cluster.metric("pdserve_requests_queued") == 1
    waiting.cancel()
    assert cluster.metric("pdserve_requests_queued") == 0
    assert cluster.metric("pdserve_cancelled_total", phase="queued") == 1


async def test_cancelling_while_it_waits_for_another_worker_withdraws_it(cluster: Cluster) -> None:
    request = await cluster.submit()
    await cluster.starts()
    await cluster.decode.stop()
    await cluster.until(lambda: request.phase is Phase.QUEUED)
    await cluster.prefill.next_abort()
    request.cancel()
    await cluster.decode.restart()
    cluster.publish()
    await cluster.until(lambda: bool(cluster.proxy.pool.decode_links()))
    assert cluster.decode.starts.empty()


async def test_a_cancelled_request_stays_cancelled(cluster: Cluster) -> None:
    request = await cluster.submit()
    _, decode = await cluster.starts()
    request.cancel()
    cluster.decode.say(decode, b"late", finish="stop")
    await cluster.decode.next_abort()
    request.cancel()
    assert request.phase is Phase.CANCELLED
    assert cluster.metric("pdserve_requests_total", code="cancelled") == 1


async def test_abort_by_id_says_whether_it_found_something(cluster: Cluster) -> None:
    request = await cluster.submit(request_id="mine")
    await cluster.starts()
    assert cluster.proxy.service.abort("mine")
    assert not cluster.proxy.service.abort("mine")
    assert request.phase is Phase.CANCELLED
    await cluster.decode.next_abort()
