"""A peer behind a bad wire: calls and events get lost, repeated or late, as a test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from kv_transfer.messages import BlockRef, ChunkReady, PeerInfo, SessionEvent, Ticket, Verdict
from kv_transfer.peer import Peer, PeerUnavailable
from kv_transfer.signalling import Invitation, SendOrder

Change = Callable[[SessionEvent], list[SessionEvent]]


class LossyPeer:
    """Maintains counts of what was asked. Each entry of a deque is used up by one `open`; None changes nothing."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.silent = asyncio.Event()  # while set, no call is answered
        self.changes: deque[Change | None] = deque()
        self.breaks_after: deque[int | None] = deque()
        self.before_commit: Callable[[], Awaitable[None]] | None = None
        self.lose_handshakes = 0
        self.lose_commits = 0  # asked, but never reach the peer
        self.lose_verdicts = 0  # reach the peer, but the answer is lost
        self.num_opens = 0
        self.num_commits = 0
        self.num_renewals = 0
        self.closed: list[Ticket] = []

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        await self._wire()
        if self.lose_handshakes:
            self.lose_handshakes -= 1
            raise PeerUnavailable("the handshake was lost")
        return await self._peer.handshake(me, incarnation)

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        self.num_opens += 1
        await self._wire()
        change = self.changes.popleft() if self.changes else None
        num_left = self.breaks_after.popleft() if self.breaks_after else None
        async for event in self._peer.open(ticket, have_tokens):
            await self._wire()
            for changed in change(event) if change is not None else [event]:
                if num_left == 0:
                    raise PeerUnavailable("the stream broke")
                num_left = num_left - 1 if num_left is not None else None
                yield changed

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        self.num_renewals += 1
        await self._wire()
        return await self._peer.renew(tickets)

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        self.num_commits += 1
        await self._wire()
        if self.before_commit is not None:
            await self.before_commit()
        if self.lose_commits:
            self.lose_commits -= 1
            raise PeerUnavailable("the commit was lost")
        verdict = await self._peer.commit(ticket, blocks, transport)
        if self.lose_verdicts:
            self.lose_verdicts -= 1
            raise PeerUnavailable("the verdict was lost")
        return verdict

    async def close(self, ticket: Ticket) -> None:
        await self._wire()
        self.closed.append(ticket)
        await self._peer.close(ticket)

    async def join(self, invitation: Invitation) -> None:
        await self._wire()
        await self._peer.join(invitation)

    async def send(self, order: SendOrder) -> None:
        await self._wire()
        await self._peer.send(order)

    async def _wire(self) -> None:
        if self.silent.is_set():
            await asyncio.Event().wait()  # the caller's deadline ends this


def twice(event: SessionEvent) -> list[SessionEvent]:
    return [event, event]


def without_chunk(sequence: int) -> Change:
    def drop(event: SessionEvent) -> list[SessionEvent]:
        return [] if isinstance(event, ChunkReady) and event.sequence == sequence else [event]

    return drop
