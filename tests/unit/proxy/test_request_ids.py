"""A request's id, which is its client's label and, while it runs, makes asking again the same as reading along."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.access.caller import Caller
from proxy.errors import ApiError, ErrorCode
from proxy.request.event_buffer import FinishedEvent
from proxy.request.lifecycle import Phase
from proxy.request.reading import Reading
from tests.unit.proxy.conftest import Cluster, MakeCluster
from tests.unit.proxy.fake_worker import PATIENCE_S


async def read(reading: Reading) -> str:
    """The whole text. Raises ApiError when the request failed for this reader."""
    async with asyncio.timeout(PATIENCE_S):
        return "".join([event.text async for event in reading.events if not isinstance(event, FinishedEvent)])


async def test_the_same_request_asked_again_is_read_along_from_its_start(cluster: Cluster) -> None:
    first = await cluster.proxy.service.submit(cluster.request(request_id="mine"))
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"abc")
    await anext(first.events)
    second = await cluster.proxy.service.submit(cluster.request(request_id="mine", timeout_s=5))
    cluster.decode.say(decode, b"de", index=3, finish="length")
    assert (await read(first), await read(second)) == ("de", "abcde")
    assert cluster.prefill.starts.empty()
    assert cluster.metric("pdserve_requests_total", code="ok") == 1


async def test_who_asks_again_while_the_first_is_admitted_waits_for_it(cluster: Cluster) -> None:
    request = cluster.request("x" * 300, request_id="mine")
    submit = cluster.proxy.service.submit
    first, second = await asyncio.gather(submit(request), submit(request))
    assert first.generation is second.generation


async def test_another_body_under_an_id_that_runs_is_refused(cluster: Cluster) -> None:
    await cluster.proxy.service.submit(cluster.request("one", request_id="mine"))
    with pytest.raises(ApiError, match="mine runs already with another body") as failure:
        await cluster.proxy.service.submit(cluster.request("two", request_id="mine"))
    assert failure.value.code is ErrorCode.ALREADY_EXISTS


async def test_an_id_is_free_again_after_the_end(cluster: Cluster) -> None:
    reading = await cluster.proxy.service.submit(cluster.request("one", request_id="mine"))
    _, first = await cluster.starts()
    reading.cancel()
    await cluster.proxy.service.submit(cluster.request("two", request_id="mine"))
    _, second = await cluster.starts()
    assert first.request.request_id != second.request.request_id  # late tokens of the one are not the other's


async def test_tenants_have_ids_of_their_own(cluster: Cluster) -> None:
    request = cluster.request(request_id="mine")
    other = replace(request, caller=Caller.without_key("other"))
    readings = [await cluster.proxy.service.submit(each) for each in (request, other)]
    assert readings[0].generation is not readings[1].generation
    assert cluster.proxy.service.abort("mine", "other")
    assert readings[0].generation.error is None


async def test_a_request_ends_with_its_last_reader(cluster: Cluster) -> None:
    readings = [await cluster.proxy.service.submit(cluster.request(request_id="mine")) for _ in range(3)]
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"a")
    (choice,) = readings[0].choices
    for reading in readings[:2]:
        reading.cancel()
        assert not choice.phase.is_end
    assert (await anext(readings[2].events)).choice == 0
    readings[2].cancel()
    assert choice.phase is Phase.CANCELLED
    await cluster.decode.next_abort()


async def test_a_reader_that_is_too_slow_ends_alone(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(max_buffered_tokens=4)
    slow = await cluster.proxy.service.submit(cluster.request(request_id="mine"))
    quick = await cluster.proxy.service.submit(cluster.request(request_id="mine"))
    _, decode = await cluster.starts()
    text = ""
    for index in range(0, 6, 2):
        cluster.decode.say(decode, b"ab", index=index, finish="length" if index == 4 else "")
        text += (await anext(quick.events)).text  # type: ignore[union-attr]
    assert text == "ababab"
    with pytest.raises(ApiError, match="too slowly"):
        await read(slow)


async def test_what_was_said_and_is_kept_no_more_cannot_be_read_from_its_start(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(max_buffered_tokens=4)
    first = await cluster.proxy.service.submit(cluster.request(request_id="mine"))
    _, decode = await cluster.starts()
    for index in range(0, 6, 2):
        cluster.decode.say(decode, b"ab", index=index)
        await anext(first.events)
    with pytest.raises(ApiError, match="has said too much") as failure:
        await cluster.proxy.service.submit(cluster.request(request_id="mine"))
    assert failure.value.code is ErrorCode.ALREADY_EXISTS


async def test_what_refuses_the_first_refuses_who_waited_with_it(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster()
    request = cluster.request("y" * 2000, request_id="mine")
    submit = cluster.proxy.service.submit
    answers = await asyncio.gather(submit(request), submit(request), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ApiError, ApiError]
