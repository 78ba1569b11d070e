"""Tells proxies what a worker's prefix cache holds, in batches; a proxy that does not ask hears and costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.cache_log import CacheLog
from engine.block_pool import CacheChange
from engine.engine import StepResult
from engine.engine_thread import EngineThread

MIN_INTERVAL_S = 0.05  # a change a step would be a message a step


class EventStream(Protocol):
    def send(self, **event: Any) -> None: ...


@dataclass(slots=True)
class Watch:
    """What one stream was told."""

    is_wanted: bool = False
    after: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class CacheReporter:
    """Maintains the log of the cache's changes, and how far each stream has been told."""

    def __init__(self) -> None:
        self._log = CacheLog()
        self._watches: dict[EventStream, Watch] = {}

    def append(self, changes: Iterable[CacheChange]) -> None:
        """The cache's next changes, none left out."""
        self._log.append(changes)
        for watch in self._watches.values():
            if watch.is_wanted:
                watch.changed.set()

    def watch(self, stream: EventStream, after: int) -> None:
        """From now on `stream` is told all changes after the first `after`."""
        watch = self._watches[stream]
        watch.is_wanted, watch.after = True, after
        watch.changed.set()

    async def report(self, stream: EventStream) -> None:
        """Tells the stream, once it asks, until cancelled."""
        watch = self._watches[stream] = Watch()
        try:
            while True:
                await watch.changed.wait()
                watch.changed.clear()
                update = self._log.since(watch.after)
                watch.after = self._log.num_changes
                stream.send(cache=update)
                await asyncio.sleep(MIN_INTERVAL_S)
        finally:
            del self._watches[stream]


def follow_cache(engine: EngineThread, on_changes: Callable[[Iterable[CacheChange]], None]) -> None:
    """Calls `on_changes` in this loop after each step and tick that changed the cache. Before the engine starts."""
    loop = asyncio.get_running_loop()
    pending: list[CacheChange] = []  # the engine thread's own

    def on_step(_: StepResult) -> None:
        if pending:
            loop.call_soon_threadsafe(on_changes, tuple(pending))
            pending.clear()

    engine.engine.pool.subscribe(pending.append)
    engine.subscribe(on_step)
