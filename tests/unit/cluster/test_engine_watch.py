"""An engine thread that hangs while the event loop, and so the worker's port, goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from pydantic import ValidationError

from cluster.engine_watch import EngineWatch
from cluster.stuck_spec import StuckSpec
from engine.engine_thread import EngineThread
from tests.unit.engine.conftest import make_engine

PATIENCE_S = 20.0


class Hung:
    """An engine thread that hangs in a command until it is let go, and what its watch says."""

    def __init__(self, limits: StuckSpec) -> None:
        self.engine = EngineThread(make_engine(), tick_s=0.01)
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.changes: asyncio.Queue[bool] = asyncio.Queue()
        self.watch = EngineWatch(self.engine, limits, self._note, self.lost.put_nowait)
        self._released = threading.Event()

    def _note(self) -> None:
        self.changes.put_nowait(self.watch.is_stuck)

    def hang(self) -> None:
        self.engine.tell(lambda _: self._released.wait(PATIENCE_S))

    def let_go(self) -> None:
        self._released.set()

    async def next_change(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return await self.changes.get()


@pytest.fixture
async def hung() -> AsyncIterator[Hung]:
    hung = Hung(StuckSpec(after_s=0.2, replaced_after_s=60))
    hung.engine.start()
    watching = asyncio.create_task(hung.watch.run())
    yield hung
    watching.cancel()
    hung.let_go()
    await asyncio.to_thread(hung.engine.stop)


async def test_an_idle_engine_turns(hung: Hung) -> None:
    turns = hung.engine.num_turns
    async with asyncio.timeout(PATIENCE_S):
        while hung.engine.num_turns < turns + 5:  # noqa: ASYNC110  nothing announces a turn
            await asyncio.sleep(0.001)
    assert not hung.watch.is_stuck


async def test_an_engine_that_hangs_is_seen_and_seen_again_when_it_goes_on(hung: Hung) -> None:
    hung.hang()
    assert await hung.next_change() is True
    hung.let_go()
    assert await hung.next_change() is False


async def test_an_engine_that_hangs_for_long_is_given_up() -> None:
    hung = Hung(StuckSpec(after_s=0.05, replaced_after_s=0.1))
    hung.engine.start()
    hung.hang()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await hung.watch.run()
        assert "not turned" in hung.lost.get_nowait()
        assert hung.watch.is_stuck
    finally:
        hung.let_go()
        await asyncio.to_thread(hung.engine.stop)


def test_a_worker_is_not_replaced_before_its_requests_moved() -> None:
    with pytest.raises(ValidationError, match="replaced_after_s is 5: set it to 10 or more"):
        StuckSpec(replaced_after_s=5)
