"""Work that is given up because its lease is lost."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from kv_transfer.handoff import unless
from kv_transfer.messages import FailureReason, HandoffError


async def test_an_error_that_it_ends_with_is_not_left_for_nobody_to_see() -> None:
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    lost: asyncio.Future[HandoffError] = loop.create_future()

    async def fail_when_cancelled() -> None:
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            raise RuntimeError("the read had just failed too") from None

    loop.call_later(0.01, lost.set_result, HandoffError(FailureReason.LEASE_EXPIRED, "gone"))
    with pytest.raises(HandoffError, match="gone"):
        await unless(lost, fail_when_cancelled())
    gc.collect()
    assert unseen == []
