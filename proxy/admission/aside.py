"""Threads for what would hold up the event loop: reading large bodies, and turning long prompts into token ids.

Everything small is done at once, in the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
NUM_THREADS = 2


class Aside:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, "aside")

    async def run(self, is_large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises; it must not touch what the loop's other tasks change."""
        if not is_large:
            return work(*args, **kwargs)
        future = self._threads.submit(work, *args, **kwargs)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
