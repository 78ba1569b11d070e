"""The completion of something that another thread does and that cannot be taken back, heard on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress


def when_ended(use: Future[None], callback: Callable[[], None]) -> None:
    """Has the running loop call `callback` once `use` is done, however it went."""
    loop = asyncio.get_running_loop()

    def tell(_: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(callback)

    use.add_done_callback(tell)


async def ended(use: Future[None]) -> None:
    """Returns once `use` is done. Cancelling this leaves `use` alone, unlike `asyncio.wrap_future`."""
    seen = asyncio.Event()
    when_ended(use, seen.set)
    await seen.wait()
