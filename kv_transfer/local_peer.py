"""A prefill worker's lease table behind async methods: what its gRPC service answers from, and a whole peer for tests.

Maintains nothing but the way into the engine thread and back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from engine.engine_thread import EngineThread
from engine.errors import EngineStopped
from kv_transfer.introduction import admit
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import (
    BlockRef,
    PeerInfo,
    PrefillDone,
    SessionEnded,
    SessionEvent,
    Ticket,
    Verdict,
)
from kv_transfer.peer import PeerUnavailable
from kv_transfer.signalling import Invitation, SendOrder
from kv_transfer.transport import TransferFailed
from kv_transfer.two_sided import TwoSidedTransport

T = TypeVar("T")


class LocalPeer:
    """A `Peer` over this worker's own lease table, which it advances after each step. Lives on one event loop."""

    def __init__(
        self,
        info: PeerInfo,
        leases: LeaseTable,
        engine: EngineThread,
        clock: Callable[[], float] = time.monotonic,
        two_sided: Mapping[str, TwoSidedTransport] | None = None,
    ) -> None:
        self._info = info
        self._leases = leases
        self._engine = engine
        self._clock = clock
        self._two_sided = two_sided or {}  # by name
        engine.subscribe(lambda _: leases.advance(clock()))
        if len(leases.layer_ends) > 1:
            engine.watch_layers(leases.layer_ends, lambda works, n: leases.layers_written(works, n, clock()))

    @property
    def transport_names(self) -> frozenset[str]:
        return frozenset(transport.name for transport in self._info.transports)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return admit(self._info, me, incarnation)

    async def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen(event: SessionEvent) -> None:
            with suppress(RuntimeError):  # the loop has closed: nobody listens any more
                loop.call_soon_threadsafe(events.put_nowait, event)

        await self._call(lambda now: self._leases.open(ticket, have_tokens, listen, now))
        while True:
            event = await events.get()  # the lease's own end bounds this
            yield event
            if isinstance(event, PrefillDone | SessionEnded):
                return

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        return await self._call(lambda now: self._leases.renew(tickets, now))

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        return await self._call(lambda now: self._leases.commit(ticket, blocks, now))

    async def close(self, ticket: Ticket) -> None:
        await self._call(lambda now: self._leases.close(ticket, now))

    async def join(self, invitation: Invitation) -> None:
        if invitation.source != self._info.incarnation:
            raise PeerUnavailable(f"this is {self._info.incarnation}, not {invitation.source}")
        self._transport(invitation.transport).join(invitation)

    async def send(self, order: SendOrder) -> None:
        self._transport(order.transport).send(order)

    def _transport(self, name: str) -> TwoSidedTransport:
        transport = self._two_sided.get(name)
        if transport is None:
            raise TransferFailed(f"{self._info.incarnation} has no transport {name} that sends")
        return transport

    async def _call(self, command: Callable[[float], T]) -> T:
        try:
            return await asyncio.wrap_future(self._engine.call(lambda _: command(self._clock())))
        except EngineStopped as error:
            raise PeerUnavailable(f"{self._info.incarnation}: {error}") from error
