"""One caller's bad line to one other: any call or answer may be lost, late, repeated, overtaken or the last one.

A message that is on its way arrives although its sender has given up, or has died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from kv_transfer.peer import PeerUnavailable
from tests.faults.fault import Draw, Fault, Faults, Message

T = TypeVar("T")


class Wire(Protocol):
    """Between two incarnations, which it can end."""

    name: str
    faults: Faults
    cut_seen: asyncio.Future[None]  # resolved when the caller sees that the other is dead, or is so itself

    def strike(self, fault: Fault | None, *, after: bool) -> None:
        """Has one of the two die or stop, or its clock jump, when that is the fault and this its moment."""
        ...

    def is_cut(self) -> bool:
        """One of the two is dead."""
        ...

    async def pass_by(self) -> None:
        """Waits for as long as one of the two is stopped."""
        ...

    def in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]: ...


class Line:
    """Maintains the messages that wait to be overtaken."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._overtakers: list[asyncio.Event] = []

    async def call(
        self, message: Message, answer: Message, whose: str, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        await self.reach()
        draw = self.draw(message, whose)
        if draw.fault is Fault.REFUSED:
            raise PeerUnavailable("refused")
        if draw.fault is Fault.TWICE:
            self.wire.in_background(self._deliver(Draw(Fault.LATE, draw.delay_s), call))
        delivery: asyncio.Task[T] = self.wire.in_background(self._deliver(draw, call))
        result = await self.unless_cut(asyncio.shield(delivery))
        await self._come_back(self.wire.faults.draw(answer, whose))
        return result

    def draw(self, message: Message, whose: str) -> Draw:
        """The fate of a message that is sent now, and passes those that were to be overtaken."""
        draw = self.wire.faults.draw(message, whose)
        for overtaker in self._overtakers:
            overtaker.set()
        self._overtakers.clear()
        return draw

    async def travel(self, draw: Draw) -> None:
        if draw.fault is Fault.LOST:
            await for_ever()
        if draw.fault is Fault.LATE:
            await asyncio.sleep(draw.delay_s)
        if draw.fault is Fault.OVERTAKEN:
            await self._be_overtaken(draw.delay_s)
        self.wire.strike(draw.fault, after=False)
        await self.wire.pass_by()

    async def reach(self) -> None:
        """Nothing is sent to a dead worker, and a dead one sends nothing."""
        if self.wire.is_cut():
            await self.unless_cut(for_ever())

    async def unless_cut(self, work: Awaitable[T]) -> T:
        """Its result, or PeerUnavailable once the other side's death is seen."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        cut_seen = self.wire.cut_seen
        try:
            either: list[asyncio.Future[Any]] = [task, cut_seen]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self.wire.is_cut():
                return task.result()
            await asyncio.wait([cut_seen])
            raise PeerUnavailable("the other side died")
        finally:
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()  # seen

    async def _deliver(self, draw: Draw, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """In its own task: what was sent arrives, whatever becomes of the sender."""
        await self.travel(draw)
        result = await call()
        self.wire.strike(draw.fault, after=True)
        return result

    async def _come_back(self, draw: Draw) -> None:
        self.wire.strike(draw.fault, after=False)
        await self.wire.pass_by()
        await self.reach()
        if draw.fault is Fault.LOST:
            await self.unless_cut(for_ever())
        if draw.fault is Fault.REFUSED:
            raise PeerUnavailable("the answer was lost")
        if draw.fault is Fault.LATE:
            await self.unless_cut(asyncio.sleep(draw.delay_s))
        self.wire.strike(draw.fault, after=True)

    async def _be_overtaken(self, at_most_s: float) -> None:
        """Until the next message of this line is sent."""
        overtaker = asyncio.Event()
        self._overtakers.append(overtaker)
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await overtaker.wait()
        await asyncio.sleep(0.002)  # that one arrives first


async def for_ever() -> Any:
    await asyncio.get_running_loop().create_future()
