"""The links to the workers and the membership behind them."""

from __future__ import annotations

import asyncio

import pytest

from proxy.errors import ApiError
from proxy.request.lifecycle import Phase
from rpc import control_pb2, worker_pb2
from rpc.worker_pb2 import PROTOCOL_VERSION
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect
from tests.unit.proxy.fake_worker import PATIENCE_S, FakeWorker


async def test_each_side_says_who_it_is_and_who_it_means(cluster: Cluster) -> None:
    hello = cluster.decode.hellos[0]
    assert hello.protocol_version == PROTOCOL_VERSION
    assert hello.worker_incarnation == cluster.decode.incarnation
    assert hello.proxy_incarnation == cluster.prefill.hellos[0].proxy_incarnation != ""


async def test_a_quiet_link_is_pinged(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(silent_s=0.5)
    async with asyncio.timeout(PATIENCE_S):
        await cluster.decode.pinged.wait()


async def test_a_silent_worker_is_taken_for_lost(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(silent_s=0.1)
    await cluster.submit()
    await cluster.starts()
    await cluster.until(lambda: len(cluster.decode.hellos) > 1)  # the link was broken, and made anew


async def test_a_worker_that_reports_its_load_is_not_silent(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(silent_s=0.1)
    request = await cluster.submit()
    _, start = await cluster.starts()
    for worker in (cluster.prefill, cluster.decode):
        worker.report_often(0.02)
    await cluster.until(lambda: cluster.decode.num_pings > 10)  # one each fifth of the time that may be silent
    assert len(cluster.decode.hellos) == 1
    cluster.decode.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"


async def test_a_stream_that_breaks_is_made_again(cluster: Cluster) -> None:
    cluster.decode.end_stream()
    await cluster.until(lambda: len(cluster.decode.hellos) == 2)
    await cluster.until(lambda: cluster.proxy.service.is_ready)
    await cluster.submit()
    await cluster.starts()


@pytest.mark.parametrize("wrong", ["protocol_version", "incarnation", "role"])
async def test_a_worker_that_is_not_the_one_that_is_meant_gets_nothing(make_cluster: MakeCluster, wrong: str) -> None:
    cluster = await make_cluster()
    stranger = FakeWorker("decode-1", worker_pb2.ROLE_DECODE)
    await stranger.start()
    cluster.workers.append(stranger)
    cluster.publish()
    values = {"protocol_version": 99, "incarnation": "another", "role": worker_pb2.ROLE_MIXED}
    setattr(stranger, wrong, values[wrong])
    await cluster.until(lambda: len(stranger.hellos) >= 2)  # tried again
    assert [link.worker for link in cluster.proxy.pool.decode_links()] == ["decode-0"]


async def test_a_worker_that_joins_gets_work_and_one_that_drains_gets_no_more(cluster: Cluster) -> None:
    new = FakeWorker("decode-1", worker_pb2.ROLE_DECODE)
    await new.start()
    cluster.workers.append(new)
    running = await cluster.submit()
    _, start = await cluster.starts()
    cluster.decode.state = control_pb2.WORKER_DRAINING
    cluster.publish()
    await cluster.until(lambda: [x.worker for x in cluster.proxy.pool.decode_links()] == ["decode-1"])
    await cluster.submit()
    await new.next_start()
    cluster.decode.say(start, b"x", finish="length")  # what runs there ends there
    assert (await collect(running))[0] == "x"


async def test_a_worker_that_left_may_end_what_it_runs(cluster: Cluster) -> None:
    running = await cluster.submit()
    _, start = await cluster.starts()
    cluster.controller.publish([cluster.prefill])
    await cluster.until(lambda: not cluster.proxy.pool.decode_links())
    with pytest.raises(ApiError, match="no decode worker"):
        await cluster.submit()
    cluster.decode.say(start, b"x", finish="length")
    assert (await collect(running))[0] == "x"


async def test_a_new_incarnation_takes_over_and_the_old_link_is_closed(cluster: Cluster) -> None:
    request = await cluster.submit()
    await cluster.starts()
    old = cluster.decode
    new = FakeWorker("decode-0", worker_pb2.ROLE_DECODE)
    await new.start()
    cluster.workers = [cluster.prefill, new]
    cluster.publish()  # the old process still answers: it is not believed any more
    start = await new.next_start()
    assert start.attempt == 2
    new.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"
    await old.stop()


async def test_without_its_controller_the_proxy_serves_on_and_follows_it_when_it_is_back(cluster: Cluster) -> None:
    port = int(cluster.controller.address.rsplit(":", 1)[1])
    await cluster.controller.stop()
    await cluster.submit()
    await cluster.starts()
    new = FakeWorker("decode-1", worker_pb2.ROLE_DECODE)
    await new.start()
    cluster.workers.append(new)
    cluster.publish()
    await cluster.controller.start(port)
    await cluster.until(lambda: len(cluster.proxy.pool.decode_links()) == 2)


async def test_a_proxy_that_starts_before_its_controller_finds_it(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, decode=0)
    assert not cluster.proxy.service.is_ready
    cluster.workers.append(FakeWorker("decode-0", worker_pb2.ROLE_DECODE))
    await cluster.decode.start()
    cluster.publish()
    await cluster.until(lambda: cluster.proxy.service.is_ready)


async def test_it_is_ready_only_when_no_worker_is_about_to_be_reached(cluster: Cluster) -> None:
    pool = cluster.proxy.pool
    new = FakeWorker("prefill-1", worker_pb2.ROLE_PREFILL)
    await new.start()
    cluster.workers.append(new)
    pool.update([worker.member for worker in cluster.workers])
    assert not pool.is_ready
    await cluster.until(lambda: pool.is_ready)
    assert len(pool.prefill_links()) == 2


async def test_a_draining_proxy_admits_nothing_and_lets_streams_finish(cluster: Cluster) -> None:
    request = await cluster.submit()
    _, start = await cluster.starts()
    draining = asyncio.create_task(cluster.proxy.service.drain(PATIENCE_S))
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="shuts down"):
        await cluster.submit()
    assert not cluster.proxy.service.is_ready
    cluster.decode.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"
    assert await draining == 0


async def test_a_drain_ends_what_is_too_slow(cluster: Cluster) -> None:
    request = await cluster.submit()
    await cluster.starts()
    assert await cluster.proxy.service.drain(0.01) == 1
    assert request.phase is Phase.FAILED
    await cluster.decode.next_abort()
