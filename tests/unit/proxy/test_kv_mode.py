"""Which way a prompt's KV goes: what cluster and request say, who is told what, and who goes on after a loss."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.fronts.metadata import answer_metadata, read_kv_mode, read_write_back
from proxy.request.event_buffer import Route
from proxy.request.kv_mode import KvMode
from proxy.request.lifecycle import Lifecycle, Phase
from rpc import control_pb2, worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect

NODES = ["pool-0", "pool-1"]


@pytest.fixture
async def pooled(make_cluster: MakeCluster) -> Cluster:
    """Two workers of each kind and a pool."""
    cluster = await make_cluster(prefill=2, decode=2, kv_mode="pooled", routing="round_robin")
    await cluster.start_pool(*NODES)
    return cluster


async def prefilled(cluster: Cluster, *, cached: int = 0) -> tuple[str, worker_pb2.StartPrefill]:
    """The next prompt is in the pool; who computed it."""
    workers = [cluster.worker(f"prefill-{i}") for i in range(2)]
    await cluster.until(lambda: any(not worker.starts.empty() for worker in workers))
    worker = next(worker for worker in workers if not worker.starts.empty())
    start = worker.starts.get_nowait()
    done = worker_pb2.PrefillProgress(
        request_id=start.request.request_id, attempt=start.ticket.attempt, cached_tokens=cached
    )
    worker.tell(done=done)
    return worker.name, start


async def generating(cluster: Cluster) -> tuple[str, worker_pb2.StartDecode]:
    workers = [cluster.worker(f"decode-{i}") for i in range(2)]
    await cluster.until(lambda: any(not worker.starts.empty() for worker in workers))
    worker = next(worker for worker in workers if not worker.starts.empty())
    return worker.name, worker.starts.get_nowait()


async def test_decode_is_told_when_the_prompt_is_in_the_pool(pooled: Cluster) -> None:
    request = await pooled.submit("hello")
    prefill, start = await prefilled(pooled, cached=3)
    assert [m.name for m in start.pool.members] == NODES
    assert (start.pool.reads, start.pool.writes_back) == (True, False)
    decode, start_decode = await generating(pooled)
    assert [(m.name, m.incarnation, m.address) for m in start_decode.pool.members] == [
        (name, f"{name}-1", f"{name}:1") for name in NODES
    ]
    assert (start_decode.HasField("source"), start_decode.attempt) == (False, start.ticket.attempt)
    assert request.phase is Phase.TRANSFERRING
    pooled.worker(decode).say(
        start_decode,
        b"x",
        finish="length",
        cached_tokens=1,
        received_tokens=3,
        computed_tokens=1,
        prefill_cached_tokens=3,
    )
    _, finished = await collect(request)
    assert finished.route == Route(KvMode.POOLED, decode, prefill)
    assert finished.usage.cached_tokens == 3  # the prefill worker computed the rest
    assert answer_metadata(request)["x-path"] == "pooled"
    assert pooled.metric("pdserve_requests_total", path="pooled") == 1


async def test_a_token_that_the_decode_worker_had_to_compute_was_not_cached(pooled: Cluster) -> None:
    request = await pooled.submit("hello")
    await prefilled(pooled, cached=4)
    decode, start = await generating(pooled)
    pooled.worker(decode).say(
        start, b"x", finish="length", received_tokens=2, computed_tokens=3, prefill_cached_tokens=2
    )
    assert (await collect(request))[1].usage.cached_tokens == 2


async def test_a_prefill_worker_that_is_lost_when_it_is_done_does_not_matter(pooled: Cluster) -> None:
    request = await pooled.submit()
    prefill, _ = await prefilled(pooled)
    decode, start = await generating(pooled)
    await pooled.worker(prefill).stop()
    await pooled.until(lambda: len(pooled.proxy.pool.prefill_links()) == 1)
    pooled.worker(decode).say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"
    assert request.num_attempts == 1


async def test_a_prefill_worker_that_is_lost_before_is_replaced_by_another(pooled: Cluster) -> None:
    request = await pooled.submit()
    await pooled.until(lambda: any(not pooled.worker(f"prefill-{i}").starts.empty() for i in range(2)))
    lost = next(f"prefill-{i}" for i in range(2) if not pooled.worker(f"prefill-{i}").starts.empty())
    pooled.worker(lost).starts.get_nowait()
    await pooled.worker(lost).stop()
    prefill, start = await prefilled(pooled)
    assert (prefill != lost, start.ticket.attempt) == (True, 2)
    decode, start_decode = await generating(pooled)
    assert start_decode.attempt == 2
    pooled.worker(decode).say(start_decode, b"x", finish="length")
    assert (await collect(request))[0] == "x"
    assert pooled.metric("pdserve_retries_total", stage="prefill") == 1


async def test_after_as_many_failed_prefills_as_allowed_decode_works_alone_and_still_reads_the_pool(
    pooled: Cluster,
) -> None:
    request = await pooled.submit()
    failed = []
    for _ in range(2):
        await pooled.until(lambda: any(not pooled.worker(f"prefill-{i}").starts.empty() for i in range(2)))
        worker = next(w for w in pooled.workers if w.name.startswith("prefill") and not w.starts.empty())
        failed.append(worker.name)
        worker.failed(worker.starts.get_nowait(), worker_pb2.FAILURE_DEADLINE)
    assert sorted(failed) == ["prefill-0", "prefill-1"]
    decode, start = await generating(pooled)
    assert start.pool.reads
    pooled.worker(decode).say(start, b"x", finish="length", computed_tokens=2)
    _, finished = await collect(request)
    assert finished.route == Route(KvMode.POOLED, decode, None)
    assert pooled.metric("pdserve_local_prefill_total", reason="handoff_failed") == 1


async def test_a_lost_decode_worker_is_replaced_and_goes_on_after_the_last_token(pooled: Cluster) -> None:
    request = await pooled.submit("hi", max_tokens=3)
    await prefilled(pooled)
    first, start = await generating(pooled)
    pooled.worker(first).say(start, b"a")
    await anext(request.events)
    await pooled.worker(first).stop()
    _, again = await prefilled(pooled)
    assert list(again.request.output_ids) == [ord("a")]
    second, start = await generating(pooled)
    assert (second != first, start.attempt) == (True, 2)
    pooled.worker(second).say(start, b"b", index=1, finish="length")
    assert (await collect(request))[0] == "b"


@pytest.mark.parametrize("when", ["queued at prefill", "no decode worker", "at decode"])
async def test_a_cancelled_request_is_ended_wherever_it_is(make_cluster: MakeCluster, when: str) -> None:
    cluster = await make_cluster(kv_mode="pooled")
    await cluster.start_pool("pool-0")
    request = await cluster.submit()
    start = await cluster.prefill.next_start()
    if when == "queued at prefill":
        request.cancel()
        assert (await cluster.prefill.next_abort()).attempt == 1
        return
    if when == "no decode worker":
        await cluster.decode.stop()
        await cluster.until(lambda: not cluster.proxy.pool.decode_links())
    cluster.prefill.prefilled(start)
    if when == "at decode":
        await cluster.decode.next_start()
    else:
        await cluster.until(lambda: request.phase is Phase.TRANSFERRING)
    request.cancel()
    if when == "at decode":
        assert (await cluster.decode.next_abort()).attempt == 1
    assert request.phase is Phase.CANCELLED
    assert cluster.proxy.service.running == []


async def test_a_pooled_cluster_without_a_living_node_serves_peer_to_peer(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(kv_mode="pooled")
    await cluster.start_pool("pool-0")
    cluster.pool_nodes[0].state = control_pb2.WORKER_STARTING
    cluster.publish()
    await cluster.until(lambda: not cluster.proxy.pool.ready_nodes())
    request = await cluster.submit()
    prefill, decode = await cluster.starts()
    assert (prefill.HasField("pool"), decode.HasField("source")) == (False, True)
    cluster.decode.say(decode, b"x", finish="length")
    assert (await collect(request))[1].route.path == "p2p"


async def path_of(cluster: Cluster, request: Lifecycle) -> str:
    """After the request was answered by whoever was asked."""
    start = await cluster.prefill.next_start() if request.job.kv_mode is not KvMode.LOCAL else None
    if start is not None and start.HasField("pool"):
        cluster.prefill.prefilled(start)
    cluster.decode.say(await cluster.decode.next_start(), b"x", finish="length")
    return (await collect(request))[1].route.path


@pytest.mark.parametrize("default", ["p2p", "pooled"])
@pytest.mark.parametrize("asked", [None, *KvMode])
async def test_a_request_may_choose_another_mode_than_the_clusters(
    make_cluster: MakeCluster, default: str, asked: KvMode | None
) -> None:
    cluster = await make_cluster(kv_mode=default)
    await cluster.start_pool("pool-0")
    request = await cluster.submit(kv_mode=asked)
    assert await path_of(cluster, request) == (asked or default)
    assert cluster.metric("pdserve_local_prefill_total", reason="asked") == (asked is KvMode.LOCAL)


@pytest.mark.parametrize("mode", KvMode)
async def test_write_back_brings_the_nodes_to_decode_in_every_mode(make_cluster: MakeCluster, mode: KvMode) -> None:
    cluster = await make_cluster()
    await cluster.start_pool("pool-0")
    await cluster.submit(kv_mode=mode, writes_back=True)
    if mode is KvMode.POOLED:
        cluster.prefill.prefilled(await cluster.prefill.next_start())
    pool = (await cluster.decode.next_start()).pool
    assert (len(pool.members), pool.reads, pool.writes_back) == (1, mode is KvMode.POOLED, True)


@pytest.mark.parametrize("asked", [{"kv_mode": KvMode.POOLED}, {"writes_back": True}])
async def test_who_asks_for_the_pool_where_there_is_none_is_told_the_fix(
    cluster: Cluster, asked: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match=r"set kv_pool\.nodes") as refused:
        await cluster.submit(**asked)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


def test_headers_say_the_mode() -> None:
    assert read_kv_mode({}) is None
    assert [read_kv_mode({"x-kv-mode": mode}) for mode in ("p2p", "pooled", "local")] == list(KvMode)
    assert [read_write_back(headers) for headers in ({}, {"x-kv-write-back": "true"})] == [False, True]
    with pytest.raises(ApiError, match="must be p2p, pooled, local, not 'Pool'"):
        read_kv_mode({"x-kv-mode": "Pool"})
    with pytest.raises(ApiError, match="must be true or false"):
        read_write_back({"x-kv-write-back": "1"})


async def test_headers_and_answer_over_http(served: Cluster, http: httpx.AsyncClient) -> None:
    await served.start_pool("pool-0")
    served.decode.answer(b"ab")
    served.prefill.on_start = served.prefill.prefilled
    body = {"model": "bytes", "prompt": "hi", "max_tokens": 2}
    for mode in KvMode:
        answer = await http.post("/v1/completions", json=body, headers={"x-kv-mode": mode})
        assert (answer.status_code, answer.headers["x-path"]) == (200, mode)
    answer = await http.post("/v1/completions", json=body, headers={"x-kv-mode": "shared"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-kv-mode"
