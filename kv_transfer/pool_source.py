"""The workers that a pool node pulls from: introduced and connected on first use, forgotten when they fail or rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from kv_transfer.config import TransferConfig
from kv_transfer.introduction import choose_transport
from kv_transfer.messages import BlockRef, FailureReason, HandoffError, PeerInfo, Ticket
from kv_transfer.peer import PeerUnavailable
from kv_transfer.pool_messages import OfferSource
from kv_transfer.transport import TransferFailed, Transport


class OfferingWorker(Protocol):
    """A worker as a node that pulls from it sees it. Raises PeerUnavailable; deadlines are the caller's."""

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        """As `Peer.handshake`."""
        ...

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        """Whether what was read of each block is what was offered."""
        ...

    async def disconnect(self) -> None: ...


@dataclass(slots=True, eq=False)
class Source:
    """One incarnation of a worker; `is_connected`: its blocks can be read."""

    incarnation: str
    worker: OfferingWorker
    used_at: float = 0.0
    num_users: int = 0
    is_connected: bool = False
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)


class SourceDirectory:
    """Maintains one entry per incarnation that offers. Lives on one event loop."""

    def __init__(
        self,
        me: PeerInfo,
        transport: Transport,
        config: TransferConfig,
        reach: Callable[[str], OfferingWorker],  # by address
    ) -> None:
        self._me = me
        self._transport = transport
        self._config = config
        self._reach = reach
        self._sources: dict[str, Source] = {}

    @asynccontextmanager
    async def connected(self, offered: OfferSource) -> AsyncIterator[Source]:
        """The source, ready to be read from. Raises HandoffError; one raised inside ends the connection."""
        source = self._sources.get(offered.incarnation)
        if source is None:
            source = Source(offered.incarnation, self._reach(offered.address))
            self._sources[offered.incarnation] = source
        source.num_users += 1
        try:
            await self._connect(source)
            yield source
        except HandoffError:
            self._transport.forget(source.incarnation)
            source.is_connected = False
            raise
        finally:
            source.num_users -= 1
            source.used_at = asyncio.get_running_loop().time()

    async def forget_idle(self) -> None:
        """Those whose connection failed, and those that nothing was pulled from for `idle_peer_s`."""
        oldest = asyncio.get_running_loop().time() - self._config.idle_peer_s
        for source in list(self._sources.values()):
            if not source.num_users and (not source.is_connected or source.used_at < oldest):
                await self._forget(source)

    async def close(self) -> None:
        for source in list(self._sources.values()):
            await self._forget(source)

    async def _connect(self, source: Source) -> None:
        try:
            async with asyncio.timeout(self._config.handshake_timeout_s), source.connecting:
                if not source.is_connected:
                    await self._introduce(source)
        except TimeoutError:
            detail = f"{source.incarnation} did not answer in {self._config.handshake_timeout_s:g} s"
            raise HandoffError(FailureReason.HANDSHAKE_TIMEOUT, detail) from None
        except PeerUnavailable as error:
            raise HandoffError(FailureReason.PEER_UNAVAILABLE, str(error)) from error
        except TransferFailed as error:
            raise HandoffError(FailureReason.TRANSFER_FAILED, str(error)) from error

    async def _introduce(self, source: Source) -> None:
        theirs = await source.worker.handshake(self._me, source.incarnation)
        mine = {self._transport.name: self._transport}
        transport, metadata = choose_transport(self._me, theirs, source.incarnation, mine)
        await asyncio.wrap_future(transport.connect(source.incarnation, metadata))
        source.is_connected = True

    async def _forget(self, source: Source) -> None:
        del self._sources[source.incarnation]
        self._transport.forget(source.incarnation)
        await source.worker.disconnect()
