"""The buffer between a request and its client."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.request.event_buffer import Event, EventBuffer, FinishedEvent, Route, SlowClient, Timings, TokenEvent, Usage
from proxy.request.kv_mode import KvMode

FINISHED = FinishedEvent("stop", Usage(1, 1, 0), Timings(0, 0, 0), Route(KvMode.LOCAL, "d", None))


def token(index: int, num_ids: int = 1) -> TokenEvent:
    return TokenEvent(index, (7,) * num_ids, "x")


async def test_events_come_in_order_and_end_after_the_last() -> None:
    buffer = EventBuffer(10)
    for event in (token(0), token(1), FINISHED):
        buffer.push(event)
    assert [event async for event in buffer] == [token(0), token(1), FINISHED]


async def test_a_waiting_client_is_woken() -> None:
    buffer = EventBuffer(10)
    waiting = asyncio.create_task(anext(buffer))
    await asyncio.sleep(0)
    buffer.push(token(0))
    assert await asyncio.wait_for(waiting, 1) == token(0)


async def test_a_failure_comes_after_what_was_said_before() -> None:
    buffer = EventBuffer(10)
    buffer.push(token(0))
    buffer.fail(ApiError(ErrorCode.ABORTED, "lost"))
    assert await anext(buffer) == token(0)
    with pytest.raises(ApiError, match="lost"):
        await anext(buffer)


async def test_more_tokens_than_the_limit_are_refused_until_some_are_read() -> None:
    buffer = EventBuffer(3)
    buffer.push(token(0, 2))
    with pytest.raises(SlowClient):
        buffer.push(token(2, 2))
    await anext(buffer)
    buffer.push(token(2, 2))


async def test_events_of_several_choices_come_as_they_came_and_end_after_the_last_end() -> None:
    buffer = EventBuffer(10, num_choices=2)
    given: list[Event] = [TokenEvent(0, (7,), "b", choice=1), replace(FINISHED, choice=1), token(0), FINISHED]
    for event in given:
        buffer.push(event)
    assert [event async for event in buffer] == given


async def test_of_several_errors_the_first_is_told() -> None:
    buffer = EventBuffer(10, num_choices=2)
    buffer.fail(ApiError(ErrorCode.ABORTED, "first"))
    buffer.fail(ApiError(ErrorCode.ABORTED, "second"))
    with pytest.raises(ApiError, match="first"):
        await anext(buffer)
