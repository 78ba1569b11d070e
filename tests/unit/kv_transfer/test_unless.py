"""Work that is given up because its lease is lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kv_transfer.handoff import unless
from kv_transfer.messages import FailureReason, HandoffError


@pytest.fixture
async def unseen() -> AsyncIterator[list[dict[str, Any]]]:
    """Errors of tasks that nobody looked at."""
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    yield contexts
    gc.collect()
    assert contexts == []


async def test_it_may_end_with_an_error(unseen: list[dict[str, Any]]) -> None:
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[HandoffError] = loop.create_future()

    async def fail_when_cancelled() -> None:
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            raise RuntimeError("the read had just failed too") from None

    loop.call_later(0.01, lost.set_result, HandoffError(FailureReason.LEASE_EXPIRED, "gone"))
    with pytest.raises(HandoffError, match="gone"):
        await unless(lost, fail_when_cancelled())


async def test_who_waits_for_it_may_be_cancelled_as_it_fails(unseen: list[dict[str, Any]]) -> None:
    loop = asyncio.get_running_loop()
    failing = loop.create_future()

    async def fail() -> None:
        await failing

    waiting = loop.create_task(unless(loop.create_future(), fail()))
    await asyncio.sleep(0)
    failing.set_exception(HandoffError(FailureReason.TRANSFER_FAILED, "the link broke"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
