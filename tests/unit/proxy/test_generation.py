"""One request with several choices: they run apart, are read as one, and end as one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.request.event_buffer import FinishedEvent, TokenEvent, Usage
from proxy.request.reading import Reading
from proxy.text.prompt import TextPrompt
from rpc import worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster
from tests.unit.proxy.fake_worker import PATIENCE_S


async def submit(cluster: Cluster, prompts: tuple[str, ...] = ("hi",), **sampling: Any) -> Reading:
    return await cluster.proxy.service.submit(cluster.request(tuple(map(TextPrompt, prompts)), **sampling))


async def starts(cluster: Cluster, number: int) -> list[worker_pb2.StartDecode]:
    """What the decode worker is told, in the order of the choices."""
    return [await cluster.decode.next_start() for _ in range(number)]


async def read(generation: Reading) -> tuple[dict[int, str], dict[int, FinishedEvent]]:
    """Each choice's text, and its end."""
    texts: dict[int, str] = {}
    ends: dict[int, FinishedEvent] = {}
    async with asyncio.timeout(PATIENCE_S):
        async for event in generation.events:
            if isinstance(event, TokenEvent):
                texts[event.choice] = texts.get(event.choice, "") + event.text
            else:
                ends[event.choice] = event
    return texts, ends


@pytest.fixture
async def cluster(make_cluster: MakeCluster) -> Cluster:
    return await make_cluster(prefill=0, dispatch_ahead=100)


async def test_each_choice_is_a_request_of_its_own_with_a_seed_of_its_own(cluster: Cluster) -> None:
    await submit(cluster, n=3, seed=7)
    told = await starts(cluster, 3)
    assert {bytes(start.request.prompt_ids) for start in told} == {b"hi"}
    assert len({start.request.request_id for start in told}) == 3
    seeds = [start.request.sampling.seed for start in told]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


async def test_the_same_seed_gives_the_same_seeds_however_many_choices_and_prompts(cluster: Cluster) -> None:
    async def seeds(prompts: tuple[str, ...], n: int) -> list[int]:
        await submit(cluster, prompts, n=n, seed=7)
        return [start.request.sampling.seed for start in await starts(cluster, n * len(prompts))]

    four = await seeds(("hi",), 4)
    assert await seeds(("hi",), 2) == four[:2]
    assert await seeds(("hi", "ho"), 2) == four[:2] * 2


async def test_the_choices_come_in_any_order_and_the_prompt_counts_once(cluster: Cluster) -> None:
    generation = await submit(cluster, n=2)
    first, second = await starts(cluster, 2)
    cluster.decode.say(second, b"two", finish="stop", cached_tokens=1)
    cluster.decode.say(first, b"one")
    cluster.decode.say(first, b"!", index=3, finish="length")
    texts, ends = await read(generation)
    assert texts == {0: "one!", 1: "tw"}  # the last of "two" stopped it
    assert (ends[0].reason, ends[1].reason) == ("length", "stop")
    assert ends[1].usage == Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=1)
    assert generation.usage == Usage(prompt_tokens=2, completion_tokens=7, cached_tokens=0)
    assert cluster.metric("pdserve_requests_total", code="ok") == 1
    assert cluster.metric("pdserve_request_duration_seconds_count") == 1
    assert cluster.metric("pdserve_prompt_tokens_total") == 2
    assert cluster.metric("pdserve_generation_tokens_total") == 7


async def test_several_prompts_are_answered_in_order_all_choices_of_one_before_the_next(cluster: Cluster) -> None:
    generation = await submit(cluster, ("a", "bcd"), n=2)
    for number, start in enumerate(await starts(cluster, 4)):
        assert bytes(start.request.prompt_ids) == (b"a" if number < 2 else b"bcd")
        cluster.decode.say(start, b"%d" % number, finish="length", cached_tokens=number)
    texts, _ = await read(generation)
    assert texts == {0: "0", 1: "1", 2: "2", 3: "3"}
    assert generation.usage == Usage(prompt_tokens=4, completion_tokens=4, cached_tokens=0 + 2)


async def test_one_choice_that_fails_fails_the_answer_and_ends_the_others(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, max_attempts=1, dispatch_ahead=100)
    generation = await submit(cluster, n=3)
    first, second, third = await starts(cluster, 3)
    cluster.decode.say(first, b"done", finish="length")
    cluster.decode.say(second, b"half")
    cluster.decode.failed(third, worker_pb2.FAILURE_INVALID, "it cannot be")
    with pytest.raises(ApiError, match="it cannot be") as failure:
        await read(generation)
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    assert (await cluster.decode.next_abort()).request_id == third.request.request_id
    assert (await cluster.decode.next_abort()).request_id == second.request.request_id
    assert cluster.metric("pdserve_requests_in_flight") == 0
    assert cluster.metric("pdserve_requests_total", code="invalid_argument") == 1
    assert cluster.metric("pdserve_cancelled_total") == 0


async def test_cancelling_ends_every_choice_also_those_that_still_wait(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, dispatch_ahead=1)
    generation = await submit(cluster, n=3)
    start = await cluster.decode.next_start()
    assert cluster.metric("pdserve_requests_queued") == 2
    generation.cancel()
    assert (await cluster.decode.next_abort()).request_id == start.request.request_id
    assert cluster.metric("pdserve_requests_queued") == 0
    assert cluster.metric("pdserve_requests_in_flight") == 0
    assert cluster.metric("pdserve_requests_total", code="cancelled") == 1
    with pytest.raises(ApiError, match="went away"):
        await read(generation)


async def test_all_choices_get_a_place_in_the_queue_or_none(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, dispatch_ahead=1, max_queued_requests=4)
    await submit(cluster)
    await cluster.decode.next_start()
    await submit(cluster, n=3)
    with pytest.raises(ApiError, match="3 requests wait") as refusal:
        await submit(cluster, n=2)
    assert refusal.value.code is ErrorCode.RESOURCE_EXHAUSTED
    await submit(cluster)  # the place that is left was not lost


async def test_more_choices_than_may_ever_wait_are_the_clients_error(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, max_queued_requests=4)
    with pytest.raises(ApiError, match=r"n: 5 choices are more than the 4 .*max_queued_requests") as refusal:
        await submit(cluster, n=5)
    assert refusal.value.code is ErrorCode.INVALID_ARGUMENT


async def test_a_prompt_too_long_refuses_the_whole_request_and_leaves_nothing(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match="512 tokens are too many"):
        await submit(cluster, ("short", "x" * 512))
    assert cluster.metric("pdserve_requests_in_flight") == 0
    await submit(cluster, request_id="again")


async def test_a_slow_client_is_cut_off_by_what_all_choices_left_unread(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, max_buffered_tokens=10)
    generation = await submit(cluster, n=2)
    first, second = await starts(cluster, 2)
    cluster.decode.say(first, b"123456")
    cluster.decode.say(second, b"123456")
    await cluster.decode.next_abort()
    await cluster.decode.next_abort()
    with pytest.raises(ApiError, match="max_buffered_tokens"):
        await read(generation)


async def test_choices_of_a_moved_worker_go_on_each_after_its_own_last_token(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, decode=1)
    generation = await submit(cluster, n=2)
    first, second = await starts(cluster, 2)
    cluster.decode.say(first, b"a")
    cluster.decode.say(second, b"bc")
    await cluster.until(lambda: cluster.metric("pdserve_generation_tokens_total") == 3)
    cluster.decode.end_stream()
    again = {bytes(start.request.output_ids): start for start in await starts(cluster, 2)}
    assert again[b"a"].request.sampling.seed == first.request.sampling.seed
    cluster.decode.say(again[b"a"], b"A", index=1, finish="length")
    cluster.decode.say(again[b"bc"], b"BC", index=2, finish="length")
    assert (await read(generation))[0] == {0: "aA", 1: "bcBC"}
