"""Priorities, tenants and long prompts, from the client's words to the order in which workers are sent requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ApiError, ErrorCode
from proxy.fronts.metadata import MAX_SALT_LENGTH, read_cache_salt, read_priority
from proxy.request.lifecycle import Phase
from proxy.request.priority import Priority, is_batch
from proxy.routing.room import MAX_UNTRANSFERRED
from rpc import inference_pb2, inference_pb2_grpc, worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster
from tests.unit.proxy.fake_worker import PATIENCE_S, FakeWorker

BATCH = Priority(is_batch=True)


@pytest.fixture
async def inference(served: Cluster) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        yield inference_pb2_grpc.InferenceStub(channel)


async def submit_all(cluster: Cluster, requests: dict[str, Priority]) -> None:
    for prompt, priority in requests.items():
        await cluster.submit(prompt, priority=priority)


async def next_prompt(worker: FakeWorker) -> tuple[str, worker_pb2.StartPrefill]:
    start = await worker.next_start()
    return bytes(start.request.prompt_ids).decode(), start


async def settle(cluster: Cluster) -> None:
    """Whatever was sent has arrived, and whoever may be sent because of it was sent."""
    mark = cluster.prefill.load.num_queued_tokens + 1
    cluster.prefill.report(num_queued_tokens=mark)
    await cluster.until(lambda: cluster.proxy.pool.prefill_links()[0].view().num_queued_tokens >= mark)
    await asyncio.sleep(0)


async def order_of_prefills(cluster: Cluster, count: int) -> list[str]:
    """Computes prompts one by one, as they come."""
    order = []
    for _ in range(count):
        prompt, start = await next_prompt(cluster.prefill)
        order.append(prompt)
        cluster.prefill.prefilled(start)
        cluster.decode.say(await cluster.decode.next_start(), b"a", finish="length")
    return order


class TestWords:
    """What a client may say, on both ports, and what workers are told."""

    @pytest.mark.parametrize(
        ("headers", "fields", "rank"),
        [
            ({}, {}, 0),
            ({}, {"priority": None}, 0),
            ({"x-priority": "interactive"}, {"priority": -10}, -10),
            ({"x-priority": "batch"}, {}, 21),
            ({"X-Priority": "batch"}, {"priority": 10}, 31),
        ],
    )
    async def test_a_priority_reaches_both_workers(
        self,
        served: Cluster,
        http: httpx.AsyncClient,
        headers: dict[str, str],
        fields: dict[str, int | None],
        rank: int,
    ) -> None:
        asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x", **fields}, headers=headers))
        prefill, decode = await served.starts()
        assert (prefill.request.priority, decode.request.priority) == (rank, rank)
        served.decode.say(decode, b"a", finish="length")
        assert (await asking).status_code == 200

    @pytest.mark.parametrize(
        ("headers", "fields", "param"),
        [
            ({"x-priority": "urgent"}, {}, "x-priority"),
            ({}, {"priority": 11}, "priority"),
            ({}, {"priority": 0.5}, "priority"),
            ({}, {"priority": True}, "priority"),
            ({"x-tenant": "two words"}, {}, "x-tenant"),
            ({}, {"cache_salt": ""}, "cache_salt"),
            ({}, {"cache_salt": 1}, "cache_salt"),
        ],
    )
    async def test_a_bad_value_is_refused_by_name(
        self,
        served: Cluster,
        http: httpx.AsyncClient,
        headers: dict[str, str],
        fields: dict[str, object],
        param: str,
    ) -> None:
        response = await http.post("/v1/completions", json={"prompt": "x", **fields}, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert served.prefill.starts.empty()

    @pytest.mark.parametrize("label", ["", "Batch", "urgent", "x" * 1000])
    def test_a_class_that_does_not_exist_is_refused(self, label: str) -> None:
        with pytest.raises(ApiError, match="interactive or batch") as refused:
            read_priority({"x-priority": label})
        assert len(refused.value.message) < 200

    @pytest.mark.parametrize("level", [-11, 11, 2**40])
    def test_a_level_out_of_range_is_refused_with_the_range(self, level: int) -> None:
        with pytest.raises(ApiError, match="from -10 to 10"):
            read_priority({}, level)

    @pytest.mark.parametrize("salt", ["", "\0", "\ud800", "x" * (MAX_SALT_LENGTH + 1)])
    def test_a_salt_is_a_short_text(self, salt: str) -> None:
        with pytest.raises(ApiError, match="printable"):
            read_cache_salt("", salt)

    async def test_grpc_takes_the_same_words(self, served: Cluster, inference: Any) -> None:
        request = inference_pb2.GenerateRequest(text="x", priority=-2, cache_salt="s")
        metadata = (("x-priority", "batch"), ("x-tenant", "acme"))
        call = inference.Generate(request, metadata=metadata, timeout=PATIENCE_S)
        prefill, decode = await served.starts()
        assert [(r.priority, r.cache_salt) for r in (prefill.request, decode.request)] == [(19, "acme s")] * 2
        served.decode.say(decode, b"a", finish="length")
        assert [event.WhichOneof("event") async for event in call] == ["started", "token", "finished"]

    @pytest.mark.parametrize(
        ("metadata", "fields", "param"),
        [
            ((("x-priority", "urgent"),), {}, "x-priority"),
            ((("x-tenant", "two words"),), {}, "x-tenant"),
            ((), {"priority": 11}, "priority"),
            ((), {"cache_salt": ""}, "cache_salt"),
        ],
    )
    async def test_grpc_refuses_a_bad_value_by_name(
        self, inference: Any, metadata: tuple[tuple[str, str], ...], fields: dict[str, Any], param: str
    ) -> None:
        request = inference_pb2.GenerateRequest(text="x", **fields)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await anext(aiter(inference.Generate(request, metadata=metadata, timeout=PATIENCE_S)))
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(failure.value.trailing_metadata() or ())["x-error-param"] == param

    async def test_a_refused_batch_request_is_counted_as_one(self, served: Cluster, http: httpx.AsyncClient) -> None:
        await http.post("/v1/completions", json={"prompt": "x", "top_p": 7}, headers={"x-priority": "batch"})
        await http.post("/v1/completions", json={"prompt": "x", "priority": 99}, headers={"x-priority": "batch"})
        assert served.metric("pdserve_requests_total", code="invalid_argument", priority="batch") == 2

    async def test_a_tenant_and_a_salt_reach_both_workers(self, served: Cluster, http: httpx.AsyncClient) -> None:
        body = {"prompt": "x", "cache_salt": "søl"}
        asking = asyncio.create_task(http.post("/v1/completions", json=body, headers={"x-tenant": "acme"}))
        prefill, decode = await served.starts()
        assert prefill.request.cache_salt == decode.request.cache_salt == "acme søl"
        served.decode.say(decode, b"a", finish="length")
        assert (await asking).status_code == 200

    def test_without_a_tenant_or_a_salt_there_is_none(self) -> None:
        assert read_cache_salt("") == ""

    @given(
        first=st.tuples(st.text("ab", max_size=3), st.text("ab ", max_size=3)),
        second=st.tuples(st.text("ab", max_size=3), st.text("ab ", max_size=3)),
    )
    def test_no_two_pairs_of_tenant_and_salt_make_the_same(
        self, first: tuple[str, str], second: tuple[str, str]
    ) -> None:
        salts = [read_cache_salt(t, s or None) for t, s in (first, second)]
        assert (salts[0] == salts[1]) == (first == second)

    def test_the_rank_tells_the_class(self) -> None:
        for level in range(-10, 11):
            assert not is_batch(Priority(False, level).rank)
            assert is_batch(Priority(True, level).rank)

    async def test_the_log_and_the_metrics_tell_the_priority(
        self, cluster: Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "proxy.request.outcomes")
        await cluster.submit(priority=Priority(True, -3))
        _, decode = await cluster.starts()
        cluster.decode.say(decode, b"a", finish="length")
        await cluster.until(lambda: cluster.metric("pdserve_requests_total", code="ok", priority="batch") == 1)
        assert cluster.metric("pdserve_time_to_first_token_seconds_count", priority="batch") == 1
        assert cluster.metric("pdserve_queue_time_seconds_count", priority="batch") == 1
        assert cluster.metric("pdserve_queue_time_seconds_count", priority="interactive") == 0
        assert [record.__dict__["fields"]["priority"] for record in caplog.records] == ["batch:-3"]


class TestOrder:
    async def test_priorities_then_arrival_decide_who_is_sent_first(self, make_cluster: MakeCluster) -> None:
        cluster = await make_cluster(dispatch_ahead=1)
        await submit_all(cluster, {"first": Priority()})
        await settle(cluster)
        await submit_all(
            cluster,
            {"b": BATCH, "c": Priority(True, -1), "d": Priority(False, 1), "e": Priority(), "f": Priority(False, -1)},
        )
        await submit_all(cluster, {"g": Priority()})
        assert await order_of_prefills(cluster, 7) == ["first", "f", "e", "g", "d", "c", "b"]

    async def test_waiting_requests_are_counted_by_class(self, make_cluster: MakeCluster) -> None:
        cluster = await make_cluster(dispatch_ahead=1)
        await submit_all(cluster, {"a": Priority(), "b": Priority()})
        await cluster.until(lambda: cluster.metric("pdserve_requests_queued") == 1)
        await submit_all(cluster, {"c": BATCH, "d": BATCH, "e": BATCH})
        await cluster.until(lambda: cluster.metric("pdserve_requests_queued") == 4)
        assert cluster.metric("pdserve_requests_queued", priority="interactive") == 1
        assert cluster.metric("pdserve_requests_queued", priority="batch") == 3

    async def test_requests_that_were_started_go_again_in_the_same_order(self, make_cluster: MakeCluster) -> None:
        cluster = await make_cluster(prefill=0, dispatch_ahead=4)
        await submit_all(cluster, {"a": BATCH, "b": Priority(False, 3), "c": Priority()})
        for _ in range(3):
            await cluster.decode.next_start()
        await cluster.decode.restart()
        cluster.publish()
        assert [(await next_prompt(cluster.decode))[0] for _ in range(3)] == ["c", "b", "a"]


class TestBatch:
    """Requests of which there may be many do not harm those that somebody waits for."""

    async def test_an_interactive_prompt_does_not_wait_for_the_place_of_a_batch_one(self, cluster: Cluster) -> None:
        for name in "abcd":
            await cluster.submit(name, priority=BATCH)
        assert [(await next_prompt(cluster.prefill))[0] for _ in range(2)] == ["a", "b"]
        cluster.prefill.report(num_waiting=2)  # both wait there
        await settle(cluster)
        for name in "ABC":
            await cluster.submit(name)
        assert [(await next_prompt(cluster.prefill))[0] for _ in range(2)] == ["A", "B"]
        cluster.prefill.report(num_waiting=4)
        await settle(cluster)
        assert cluster.prefill.starts.empty()  # dispatch_ahead holds for its own class too

    async def test_an_interactive_request_does_not_wait_for_a_decode_worker_that_is_full_of_batch_ones(
        self, cluster: Cluster
    ) -> None:
        requests = [await cluster.submit(priority=BATCH) for _ in range(MAX_UNTRANSFERRED)]
        for _ in requests:
            prefill, _decode = await cluster.starts()
            cluster.prefill.prefilled(prefill)
        await cluster.until(lambda: all(request.phase is Phase.TRANSFERRING for request in requests))
        await cluster.submit("batch", priority=BATCH)
        await settle(cluster)
        assert cluster.prefill.starts.empty()
        await cluster.submit("interactive")
        assert (await next_prompt(cluster.prefill))[0] == "interactive"

    async def test_a_batch_request_waits_for_all(self, cluster: Cluster) -> None:
        await submit_all(cluster, {"a": Priority(), "b": Priority()})
        for _ in range(2):
            await cluster.prefill.next_start()
        cluster.prefill.report(num_waiting=2)
        await cluster.submit("batch", priority=BATCH)
        await settle(cluster)
        assert cluster.prefill.starts.empty()
        cluster.prefill.report(num_running=1, num_waiting=1)
        assert (await next_prompt(cluster.prefill))[0] == "batch"

    async def test_a_batch_request_gets_its_turn_though_interactive_ones_keep_coming(
        self, make_cluster: MakeCluster
    ) -> None:
        cluster = await make_cluster(dispatch_ahead=1, priority_ageing_s=0.001)
        await submit_all(cluster, {"a": Priority(), "b": Priority(), "batch": BATCH})
        num_others = 0
        while await order_of_prefills(cluster, 1) != ["batch"]:
            num_others += 1
            await cluster.submit("another")
            assert num_others < 1000

    async def test_in_a_flood_of_5000_an_interactive_request_is_the_next_to_be_sent(
        self, make_cluster: MakeCluster
    ) -> None:
        cluster = await make_cluster(max_queued_requests=8192, silent_s=60.0)
        for i in range(5000):
            await cluster.submit(f"batch {i}", priority=BATCH)
            await asyncio.sleep(0)
        assert await order_of_prefills(cluster, 20) == [f"batch {i}" for i in range(20)]
        await cluster.submit("interactive")
        assert "interactive" in await order_of_prefills(cluster, 3)  # two were at the worker already
        assert cluster.metric("pdserve_requests_queued", priority="batch") > 4900
        await cluster.submit("interactive")
        assert "interactive" in await order_of_prefills(cluster, 3)

    async def test_a_flood_that_fills_the_queue_refuses_only_its_own(self, make_cluster: MakeCluster) -> None:
        cluster = await make_cluster(max_queued_requests=16, dispatch_ahead=1)
        await cluster.submit(priority=BATCH)
        await settle(cluster)
        for _ in range(14):
            await cluster.submit(priority=BATCH)
        with pytest.raises(ApiError, match="14 requests") as refused:
            await cluster.submit(priority=BATCH)
        assert refused.value.code is ErrorCode.RESOURCE_EXHAUSTED
        await cluster.submit()


class TestLongPrompts:
    LONG = "long" * 20

    async def lane(self, make_cluster: MakeCluster, **settings: int) -> Cluster:
        return await make_cluster(**{"long_prompt_tokens": 50, "dispatch_ahead": 4, **settings})

    async def test_short_prompts_pass_long_ones_that_wait_for_their_lane(self, make_cluster: MakeCluster) -> None:
        cluster = await self.lane(make_cluster)
        for prompt in (f"{self.LONG}1", f"{self.LONG}2", "a", "b"):
            await cluster.submit(prompt)
        prompt, first = await next_prompt(cluster.prefill)
        assert prompt == f"{self.LONG}1"
        assert [(await next_prompt(cluster.prefill))[0] for _ in range(2)] == ["a", "b"]
        await settle(cluster)
        assert cluster.prefill.starts.empty()
        cluster.prefill.prefilled(first)
        assert (await next_prompt(cluster.prefill))[0] == f"{self.LONG}2"

    async def test_a_long_prompt_goes_before_short_ones_that_came_later(self, make_cluster: MakeCluster) -> None:
        cluster = await self.lane(make_cluster, dispatch_ahead=1)
        for prompt in ("a", self.LONG, "b"):
            await cluster.submit(prompt)
        assert await order_of_prefills(cluster, 3) == ["a", self.LONG, "b"]

    async def test_each_prefill_worker_has_a_lane(self, make_cluster: MakeCluster) -> None:
        cluster = await self.lane(make_cluster, prefill=2)
        for i in range(3):
            await cluster.submit(f"{self.LONG}{i}")
        for worker in cluster.workers[:2]:
            await next_prompt(worker)
        await cluster.until(lambda: cluster.metric("pdserve_requests_queued") == 1)

    async def test_a_cancelled_long_prompt_frees_the_lane(self, make_cluster: MakeCluster) -> None:
        cluster = await self.lane(make_cluster)
        first = await cluster.submit(f"{self.LONG}1")
        await cluster.submit(f"{self.LONG}2")
        await next_prompt(cluster.prefill)
        first.cancel()
        assert (await next_prompt(cluster.prefill))[0] == f"{self.LONG}2"

    async def test_a_worker_that_does_both_has_a_lane_too(self, make_cluster: MakeCluster) -> None:
        cluster = await self.lane(make_cluster, prefill=0, decode=0, mixed=1)
        for prompt in (f"{self.LONG}1", f"{self.LONG}2", "a"):
            await cluster.submit(prompt)
        worker = cluster.worker("mixed-0")
        first = await worker.next_start()
        assert (await next_prompt(worker))[0] == "a"
        assert worker.starts.empty()
        worker.say(first, b"x")
        assert (await next_prompt(worker))[0] == f"{self.LONG}2"

    async def test_an_interactive_long_prompt_does_not_wait_for_a_batch_one(self, make_cluster: MakeCluster) -> None:
        cluster = await self.lane(make_cluster)
        await cluster.submit(f"{self.LONG}batch", priority=BATCH)
        await next_prompt(cluster.prefill)
        await cluster.submit(f"{self.LONG}more", priority=BATCH)
        await cluster.submit(f"{self.LONG}now")
        assert (await next_prompt(cluster.prefill))[0] == f"{self.LONG}now"
        await settle(cluster)
        assert cluster.prefill.starts.empty()
