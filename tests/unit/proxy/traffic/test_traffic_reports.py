"""What a proxy tells the controller of its traffic."""

from __future__ import annotations

import asyncio

import pytest

from proxy.errors import ApiError
from proxy.request.priority import Priority
from rpc import control_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect
from tests.unit.proxy.fake_worker import PATIENCE_S


def report(cluster: Cluster) -> dict[str, control_pb2.ClassTraffic]:
    """Of the time since the last one, by class."""
    told = cluster.proxy.traffic.report(cluster.proxy.service.running, asyncio.get_running_loop().time())
    return {each.priority: each for each in told.classes}


async def test_a_request_is_told_when_it_comes_when_it_has_a_token_and_when_it_ends(cluster: Cluster) -> None:
    request = await cluster.submit("a prompt", max_tokens=3)
    _, decode = await cluster.starts()
    told = report(cluster)["interactive"]
    assert (told.num_arrived, told.num_prompt_tokens, told.num_ended) == (1, 8, 0)
    assert len(told.waiting_s) == 1
    assert not told.first_token_s

    cluster.decode.say(decode, b"a", index=0)
    await cluster.until(lambda: request.progress.first_token_at is not None)
    told = report(cluster)["interactive"]
    assert (told.num_arrived, len(told.first_token_s), len(told.queue_s), len(told.waiting_s)) == (0, 1, 1, 0)

    cluster.decode.say(decode, b"bc", index=1, finish="length")
    await collect(request)
    told = report(cluster)["interactive"]
    assert (told.num_ended, told.num_ended_prompt_tokens, told.num_generated_tokens) == (1, 8, 3)
    assert told.num_ended_prefill_tokens == 8
    assert len(told.per_token_s) == 1
    assert not told.first_token_s


async def test_prompts_that_belong_on_a_decode_worker_ask_for_no_prefill_worker(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(local_prefill="by_cost")
    cluster.decode.answer(b"a")
    await collect(await cluster.submit("short", max_tokens=1))
    told = report(cluster)["interactive"]
    assert (told.num_ended_prompt_tokens, told.num_ended_prefill_tokens) == (5, 0)


async def test_prompts_that_no_prefill_worker_can_take_ask_for_one(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0)
    cluster.decode.answer(b"a")
    await collect(await cluster.submit("long or short", max_tokens=1))
    told = report(cluster)["interactive"]
    assert told.num_ended_prefill_tokens == told.num_ended_prompt_tokens == 13


async def test_refused_requests_count_as_demand_and_classes_are_told_apart(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(max_queued_requests=1, dispatch_ahead=1)
    first = await cluster.submit("a", priority=Priority(is_batch=True))
    await cluster.starts()
    await cluster.submit("b", priority=Priority(is_batch=True))
    with pytest.raises(ApiError):
        await cluster.submit("c", priority=Priority(is_batch=True))
    told = report(cluster)
    assert (told["batch"].num_arrived, told["batch"].num_refused) == (2, 1)
    assert told["interactive"].num_arrived == 0
    first.cancel()


async def test_nothing_is_told_until_the_controller_asks(cluster: Cluster) -> None:
    cluster.decode.answer(b"a")
    await collect(await cluster.submit("early", max_tokens=1))
    assert cluster.controller.reports.empty()
    cluster.controller.traffic_every_s = 0.05
    cluster.publish()
    async with asyncio.timeout(PATIENCE_S):
        first = await cluster.controller.reports.get()
        await collect(await cluster.submit("late", max_tokens=1))
        told = first
        while not told.classes[0].num_arrived:
            told = await cluster.controller.reports.get()
    assert first.span_s > 0
    assert told.proxy_incarnation == first.proxy_incarnation
    assert [each.num_arrived for each in told.classes] == [1, 0]


async def test_a_controller_that_is_away_costs_reports_and_nothing_else(cluster: Cluster) -> None:
    cluster.controller.traffic_every_s = 0.02
    cluster.publish()
    async with asyncio.timeout(PATIENCE_S):
        await cluster.controller.reports.get()
    port = int(cluster.controller.address.rsplit(":", 1)[1])
    await cluster.controller.stop()
    cluster.decode.answer(b"a")
    text, _ = await collect(await cluster.submit("meanwhile", max_tokens=1))
    assert text == "a"
    await cluster.controller.start(port)
    cluster.controller.reports = asyncio.Queue()
    async with asyncio.timeout(PATIENCE_S):
        assert (await cluster.controller.reports.get()).span_s > 0
