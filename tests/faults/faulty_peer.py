"""A peer at the other end of a bad line, which spoils the calls, their answers and each event of a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

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
from tests.faults.fault import Draw, Fault, Message
from tests.faults.line import Line, Wire


class FaultyPeer:
    """A `Peer` over another one."""

    def __init__(self, peer: Peer, wire: Wire) -> None:
        self._peer = peer
        self._wire = wire
        self._line = Line(wire)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        def call() -> Coroutine[Any, Any, PeerInfo]:
            return self._peer.handshake(me, incarnation)

        return await self._line.call(Message.HANDSHAKE, Message.INTRODUCTION, self._wire.name, call)

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        await self._line.reach()
        whose = ticket.session.hex()
        draw = self._line.draw(Message.OPEN, whose)
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

        return await self._line.call(Message.RENEW, Message.ALIVE, self._wire.name, call)

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        refs = tuple(blocks)

        def call() -> Coroutine[Any, Any, Verdict]:
            return self._peer.commit(ticket, refs, transport)

        return await self._line.call(Message.COMMIT, Message.VERDICT, ticket.session.hex(), call)

    async def close(self, ticket: Ticket) -> None:
        def call() -> Coroutine[Any, Any, None]:
            return self._peer.close(ticket)

        await self._line.call(Message.CLOSE, Message.CLOSED, ticket.session.hex(), call)

    async def join(self, invitation: Invitation) -> None:
        def call() -> Coroutine[Any, Any, None]:
            return self._peer.join(invitation)

        await self._line.call(Message.JOIN, Message.JOINED, self._wire.name, call)

    async def send(self, order: SendOrder) -> None:
        def call() -> Coroutine[Any, Any, None]:
            return self._peer.send(order)

        await self._line.call(Message.SEND, Message.AGREED, self._wire.name, call)

    async def _feed(
        self, draw: Draw, ticket: Ticket, have_tokens: int, events: asyncio.Queue[SessionEvent | None]
    ) -> None:
        """P's side of the stream, and a second one when the Open comes twice."""
        if draw.fault is Fault.REFUSED:
            return
        if draw.fault is Fault.TWICE:
            late = Draw(Fault.LATE, draw.delay_s)
            self._wire.in_background(self._feed(late, ticket, have_tokens, asyncio.Queue()))
        await self._line.travel(draw)
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
        line = self._line
        held: SessionEvent | None = None  # the one that the next overtakes
        while (event := await line.unless_cut(events.get())) is not None:
            draw = self._wire.faults.draw(_kind(event), whose)
            self._wire.strike(draw.fault, after=False)
            await line.reach()
            if draw.fault is Fault.REFUSED:
                raise PeerUnavailable("the stream broke")
            if draw.fault is Fault.LATE:
                await line.unless_cut(asyncio.sleep(draw.delay_s))
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


def _kind(event: SessionEvent) -> Message:
    match event:
        case ChunkReady():
            return Message.CHUNK
        case PrefillDone():
            return Message.DONE
        case _:
            return Message.ENDED
