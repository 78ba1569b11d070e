"""A peer at the other end of a bad wire: any of its messages may be lost, late, repeated, overtaken or the last one.

A message that is on its way arrives although its sender has given up, or has died.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from kv_transfer.messages import (
    BlockRef,
    ChunkReady,
    PeerInfo,
    PrefillDone,
    SessionEvent,
    Ticket,
    Verdict,
)
from kv_transfer.peer import Peer, PeerUnavailable
from kv_transfer.signalling import Invitation, SendOrder
from tests.faults.fault import Draw, Fault, Faults, Message

T = TypeVar("T")


class Wire(Protocol):
    """Between one D and one incarnation of P, which it can end."""

    name: str
    faults: Faults
    cut_seen: asyncio.Future[None]  # resolved when D sees that P is dead, which a silent death hides, or is so itself

    def strike(self, fault: Fault | None, *, after: bool) -> None:
        """Has a worker die, or its clock jump, when that is the fault and this its moment."""
        ...

    def is_cut(self) -> bool:
        """One of the two is dead."""
        ...

    def in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]: ...


class FaultyPeer:
    """A `Peer` over another one."""

    def __init__(self, peer: Peer, wire: Wire) -> None:
        self._peer = peer
        self._wire = wire
        self._overtakers: list[asyncio.Event] = []

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        def call() -> Coroutine[Any, Any, PeerInfo]:
            return self._peer.handshake(me, incarnation)

        return await self._call(Message.HANDSHAKE, Message.INTRODUCTION, self._wire.name, call)

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        await self._reach()
        whose = ticket.session.hex()
        draw = self._wire.faults.draw(Message.OPEN, whose)
        self._overtake()
        events: asyncio.Queue[SessionEvent | None] = asyncio.Queue()  # None: the stream has ended
        feed = self._wire.in_background(self._feed(draw, ticket, have_tokens, events))
        try:
            if draw.fault is Fault.REFUSED:
                raise PeerUnavailable("refused")
            async for event in self._damage(events, whose):
                yield event
        finally:
            if draw.fault is None:
                feed.cancel()

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        def call() -> Coroutine[Any, Any, list[bool]]:
            return self._peer.renew(tickets)

        return await self._call(Message.RENEW, Message.ALIVE, self._wire.name, call)

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        refs = tuple(blocks)

        def call() -> Coroutine[Any, Any, Verdict]:
            return self._peer.commit(ticket, refs, transport)

        return await self._call(Message.COMMIT, Message.VERDICT, ticket.session.hex(), call)

    async def close(self, ticket: Ticket) -> None:
        def call() -> Coroutine[Any, Any, None]:
            return self._peer.close(ticket)

        await self._call(Message.CLOSE, Message.CLOSED, ticket.session.hex(), call)

    async def join(self, invitation: Invitation) -> None:
        await self._peer.join(invitation)

    async def send(self, order: SendOrder) -> None:
        await self._peer.send(order)

    async def _call(
        self, message: Message, answer: Message, whose: str, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        await self._reach()
        draw = self._wire.faults.draw(message, whose)
        self._overtake()
        if draw.fault is Fault.REFUSED:
            raise PeerUnavailable("refused")
        if draw.fault is Fault.TWICE:
            self._wire.in_background(self._deliver(Draw(Fault.LATE, draw.delay_s), call))
        delivery: asyncio.Task[T] = self._wire.in_background(self._deliver(draw, call))
        result = await self._unless_cut(asyncio.shield(delivery))
        back = self._wire.faults.draw(answer, whose)
        await self._come_back(back)
        return result

    async def _deliver(self, draw: Draw, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """In its own task: what was sent arrives, whatever becomes of the sender."""
        await self._travel(draw)
        result = await call()
        self._wire.strike(draw.fault, after=True)
        return result

    async def _travel(self, draw: Draw) -> None:
        if draw.fault is Fault.LOST:
            await _for_ever()
        if draw.fault is Fault.LATE:
            await asyncio.sleep(draw.delay_s)
        if draw.fault is Fault.OVERTAKEN:
            await self._be_overtaken(draw.delay_s)
        self._wire.strike(draw.fault, after=False)

    async def _come_back(self, draw: Draw) -> None:
        self._wire.strike(draw.fault, after=False)
        await self._reach()
        if draw.fault is Fault.LOST:
            await self._unless_cut(_for_ever())
        if draw.fault is Fault.REFUSED:
            raise PeerUnavailable("the answer was lost")
        if draw.fault is Fault.LATE:
            await self._unless_cut(asyncio.sleep(draw.delay_s))
        self._wire.strike(draw.fault, after=True)

    async def _feed(
        self, draw: Draw, ticket: Ticket, have_tokens: int, events: asyncio.Queue[SessionEvent | None]
    ) -> None:
        """P's side of the stream, and a second one when the Open comes twice."""
        if draw.fault is Fault.REFUSED:
            return
        if draw.fault is Fault.TWICE:
            late = Draw(Fault.LATE, draw.delay_s)
            self._wire.in_background(self._feed(late, ticket, have_tokens, asyncio.Queue()))
        await self._travel(draw)
        try:
            async for event in self._peer.open(ticket, have_tokens):
                self._wire.strike(draw.fault, after=True)
                events.put_nowait(event)
        except PeerUnavailable:
            return  # P is dead, which its reader sees in its own time
        events.put_nowait(None)

    async def _damage(
        self, events: asyncio.Queue[SessionEvent | None], whose: str
    ) -> AsyncGenerator[SessionEvent, None]:
        held: SessionEvent | None = None  # the one that the next overtakes
        while (event := await self._unless_cut(events.get())) is not None:
            draw = self._wire.faults.draw(_kind(event), whose)
            self._wire.strike(draw.fault, after=False)
            await self._reach()
            if draw.fault is Fault.REFUSED:
                raise PeerUnavailable("the stream broke")
            if draw.fault is Fault.LATE:
                await self._unless_cut(asyncio.sleep(draw.delay_s))
            if draw.fault is Fault.OVERTAKEN and held is None:
                held = event
                continue
            if draw.fault is not Fault.LOST:
                yield event
            if draw.fault is Fault.TWICE:
                yield event
            if held is not None:
                yield held
                held = None
            self._wire.strike(draw.fault, after=True)
        if held is not None:
            yield held

    async def _reach(self) -> None:
        """Nothing is sent to a dead worker, and a dead one sends nothing."""
        if self._wire.is_cut():
            await self._unless_cut(_for_ever())

    async def _unless_cut(self, work: Awaitable[T]) -> T:
        """Its result, or PeerUnavailable once the other side's death is seen."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        cut_seen = self._wire.cut_seen
        try:
            either: list[asyncio.Future[Any]] = [task, cut_seen]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self._wire.is_cut():
                return task.result()
            await asyncio.wait([cut_seen])
            raise PeerUnavailable("the other side died")
        finally:
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()  # seen

    def _overtake(self) -> None:
        for overtaker in self._overtakers:
            overtaker.set()
        self._overtakers.clear()

    async def _be_overtaken(self, at_most_s: float) -> None:
        """Until the next message of this wire is sent."""
        overtaker = asyncio.Event()
        self._overtakers.append(overtaker)
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await overtaker.wait()
        await asyncio.sleep(0.002)  # that one arrives first


def _kind(event: SessionEvent) -> Message:
    match event:
        case ChunkReady():
            return Message.CHUNK
        case PrefillDone():
            return Message.DONE
        case _:
            return Message.ENDED


async def _for_ever() -> Any:
    await asyncio.get_running_loop().create_future()
