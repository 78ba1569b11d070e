"""The way of calls and reads from who takes blocks to who has them, where a test says what happens at which moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from enum import StrEnum
from typing import TypeVar

from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.messages import BlockRef, HandoffError, PeerInfo, SessionEvent, Ticket, Verdict
from kv_transfer.peer import Peer, PeerUnavailable
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_source import OfferingWorker
from kv_transfer.signalling import Invitation, SendOrder, Signalling
from kv_transfer.staging import Slot
from kv_transfer.transport import Transport

T = TypeVar("T")
Action = Callable[[], Awaitable[None]]


class Moment(StrEnum):
    """What who takes is about to do."""

    OPEN = "open"  # ask for the blocks
    READ = "read"  # read the first of them
    COMMIT = "commit"  # ask whether what was read still holds


class Wire:
    """Maintains what was called, so that it can be delivered once more. While it is `stopped`, no call is answered."""

    def __init__(self) -> None:
        self.is_gone = False  # every call fails
        self.repeats: set[Moment] = set()  # calls that arrive twice; the first answer is lost
        self.reached: set[Moment] = set()
        self.num_reads = 0
        self._actions: dict[Moment, Action] = {}
        self._calls: list[Callable[[], Awaitable[object]]] = []
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._posting: set[asyncio.Task[None]] = set()

    def at(self, moment: Moment, action: Action) -> None:
        """Has this happen once, when the moment comes, before anything else does."""
        self._actions[moment] = action

    def stop(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    async def replay(self) -> None:
        """All calls so far arrive again, or for the first time, the last one first. What they answer is lost."""
        calls, self._calls = self._calls, []
        for call in reversed(calls):
            with suppress(PeerUnavailable, HandoffError):
                await call()

    async def call(self, call: Callable[[], Awaitable[T]], moment: Moment | None = None) -> T:
        self._calls.append(call)
        if moment is not None:
            await self.reach(moment)
        await self.get_through()
        if moment in self.repeats:
            await call()
        return await call()

    async def reach(self, moment: Moment) -> None:
        self.reached.add(moment)
        action = self._actions.pop(moment, None)
        if action is not None:
            await action()

    async def get_through(self) -> None:
        if self.is_gone:
            raise PeerUnavailable("nobody is there")
        await self._goes_on.wait()

    def note(self, call: Callable[[], Awaitable[object]]) -> None:
        """One that `replay` makes again."""
        self._calls.append(call)

    def read(self, post: Callable[[], Future[None]]) -> Future[None]:
        """Posted at once, or after what is to happen first."""
        self.num_reads += 1
        if Moment.READ not in self._actions:
            self.reached.add(Moment.READ)
            return post()
        read: Future[None] = Future()
        read.set_running_or_notify_cancel()
        posting = asyncio.get_running_loop().create_task(self._post_later(post, read))
        self._posting.add(posting)
        posting.add_done_callback(self._posting.discard)
        return read

    async def _post_later(self, post: Callable[[], Future[None]], read: Future[None]) -> None:
        await self.reach(Moment.READ)
        post().add_done_callback(lambda posted: _pass_on(posted, read))


class WiredTransport:
    """Who takes reads with it."""

    def __init__(self, transport: Transport, wire: Wire) -> None:
        self._transport = transport
        self._wire = wire

    @property
    def name(self) -> str:
        return self._transport.name

    def metadata(self) -> bytes:
        return self._transport.metadata()

    def connect(self, peer: str, metadata: bytes, signalling: Signalling | None = None) -> Future[None]:
        return self._transport.connect(peer, metadata, signalling)

    def read(
        self, peer: str, blocks: Sequence[int], slot: Slot, order: float = 0.0, part: BlockPart = WHOLE
    ) -> Future[None]:
        return self._wire.read(lambda: self._transport.read(peer, blocks, slot, order, part))

    def forget(self, peer: str) -> None:
        self._transport.forget(peer)

    def keep_awake(self, awake: bool) -> None:
        self._transport.keep_awake(awake)

    def close(self, timeout_s: float = 5.0) -> None:
        self._transport.close(timeout_s)


class WiredPeer:
    """A prefill worker as a decode worker calls it."""

    def __init__(self, peer: Peer, wire: Wire) -> None:
        self._peer = peer
        self._wire = wire

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return await self._wire.call(lambda: self._peer.handshake(me, incarnation))

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        self._wire.note(lambda: self._hear(ticket, have_tokens))
        await self._wire.reach(Moment.OPEN)
        await self._wire.get_through()
        lost = None
        if Moment.OPEN in self._wire.repeats:
            lost = asyncio.ensure_future(self._hear(ticket, have_tokens))
            await asyncio.sleep(0)  # it is on its way
        async with aclosing(self._peer.open(ticket, have_tokens)) as events:
            async for event in events:
                await self._wire.get_through()
                yield event
        if lost is not None:
            await lost  # the later one has ended it

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        return await self._wire.call(lambda: self._peer.renew(tickets))

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        return await self._wire.call(lambda: self._peer.commit(ticket, list(blocks), transport), Moment.COMMIT)

    async def close(self, ticket: Ticket) -> None:
        await self._wire.call(lambda: self._peer.close(ticket))

    async def join(self, invitation: Invitation) -> None:
        await self._wire.get_through()
        await self._peer.join(invitation)

    async def send(self, order: SendOrder) -> None:
        await self._wire.get_through()
        await self._peer.send(order)

    async def _hear(self, ticket: Ticket, have_tokens: int) -> None:
        async for _ in self._peer.open(ticket, have_tokens):
            """Nobody listens."""


class WiredNode:
    """A pool node as a worker calls it."""

    def __init__(self, node: PoolNode, wire: Wire) -> None:
        self._node = node
        self._wire = wire

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return await self._wire.call(lambda: self._node.handshake(me, incarnation))

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        return await self._wire.call(lambda: self._node.lookup(reader, keys), Moment.OPEN if keys else None)

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        return await self._wire.call(lambda: self._node.commit(reader, keys, refs), Moment.COMMIT)

    async def close(self, reader: Ticket) -> None:
        await self._wire.call(lambda: self._node.close(reader))

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        return await self._wire.call(lambda: self._node.offer(source, keys, refs))

    async def disconnect(self) -> None:
        await self._node.disconnect()


class WiredWorker:
    """A worker that offers blocks as a pool node calls it."""

    def __init__(self, worker: OfferingWorker, wire: Wire) -> None:
        self._worker = worker
        self._wire = wire

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return await self._wire.call(lambda: self._worker.handshake(me, incarnation), Moment.OPEN)

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        return await self._wire.call(lambda: self._worker.commit_offer(ticket, refs), Moment.COMMIT)

    async def disconnect(self) -> None:
        await self._worker.disconnect()


def _pass_on(posted: Future[None], read: Future[None]) -> None:
    error = posted.exception()
    if error is not None:
        read.set_exception(error)
    else:
        read.set_result(None)
