"""What one D keeps of one incarnation of one P: the handshake's result, its leases, and when it was last heard.

A P that was silent for `silent_peer_s` is given up by every hand-off at once; so is a lease that P no longer knows.
Who was waited for in vain is used again once it answers at once, and nothing is still being read from it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kv_transfer.config import TransferConfig
from kv_transfer.introduction import choose_transport
from kv_transfer.messages import FailureReason, HandoffError, PeerInfo, Ticket
from kv_transfer.peer import Peer, PeerUnavailable
from kv_transfer.read_turns import ReadTurns
from kv_transfer.signalling import PeerSignalling
from kv_transfer.transport import TransferFailed, Transport

KNOCK_TIMEOUT_S = 2.0  # longer than gRPC waits between two tries to connect
KNOCK_EVERY_S = 0.1
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """`lost` is resolved with the reason when the hand-off need not go on."""

    ticket: Ticket
    started_at: float
    lost: asyncio.Future[HandoffError]


class PeerLink:
    """Maintains one renewal task while there are leases, and none otherwise. Lives on one event loop."""

    def __init__(
        self, peer: Peer, incarnation: str, me: PeerInfo, transports: Mapping[str, Transport], config: TransferConfig
    ) -> None:
        self.peer = peer
        self.incarnation = incarnation
        self._me = me
        self._transports = transports  # by name, the preferred one first
        self._config = config
        self._connecting = asyncio.Lock()
        self._connected: dict[str, Transport] = {}
        self._refused: HandoffError | None = None
        self.turns = ReadTurns(config)
        self._is_suspect = False
        self._in_doubt: dict[str, list[Future[None]]] = {}  # reads, by transport
        self._in_doubt_since = 0.0
        self._leases: dict[Ticket, Lease] = {}
        self._heard_at = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, transport_name: str = "") -> Transport:
        """The transport to read with, by name or the first that both have, after a handshake if there was none yet."""
        limit_s = self._config.handshake_timeout_s
        limit_s = min(limit_s, KNOCK_TIMEOUT_S) if self._is_suspect else limit_s
        try:
            async with asyncio.timeout(limit_s), self._connecting:
                if self._is_suspect:
                    await self._knock()
                transport = self._connected.get(transport_name) or await self._handshake(transport_name)
                self._check_doubts(transport.name)
                return transport
        except TimeoutError:
            self._is_suspect = True
            detail = f"{self.incarnation} did not answer in {limit_s:g} s"
            raise HandoffError(FailureReason.HANDSHAKE_TIMEOUT, detail) from None
        except PeerUnavailable as error:
            raise HandoffError(FailureReason.PEER_UNAVAILABLE, str(error)) from error
        except TransferFailed as error:
            raise HandoffError(FailureReason.TRANSFER_FAILED, str(error)) from error

    def disconnect(self) -> None:
        """A read failed: whatever was set up is let go of, and the next hand-off starts with a new handshake."""
        for transport in self._connected.values():
            transport.forget(self.incarnation)
        self._connected.clear()

    def suspect(self, transport_name: str, in_doubt: Sequence[Future[None]]) -> None:
        """A hand-off waited for it in vain; `in_doubt`: its reads, some of which may have ended."""
        self._is_suspect = True
        if in_doubt:
            self._in_doubt.setdefault(transport_name, []).extend(in_doubt)
            self._in_doubt_since = asyncio.get_running_loop().time()

    @contextmanager
    def lease(self, ticket: Ticket) -> Iterator[asyncio.Future[HandoffError]]:
        """Renews the ticket's lease inside the block, from `renew_every_s` after its start on."""
        loop = asyncio.get_running_loop()
        lease = Lease(ticket, loop.time(), loop.create_future())
        if not self._leases:
            self.heard()
        self._leases[ticket] = lease
        if self._renewing is None or self._renewing.done():
            self._renewing = loop.create_task(self._renew())
        try:
            yield lease.lost
        finally:
            self._leases.pop(ticket, None)

    def heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    def close_session(self, ticket: Ticket) -> None:
        """Tells P in the background, once and within a deadline, that nobody wants this attempt any more."""
        task = asyncio.get_running_loop().create_task(self._close_session(ticket))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Forgets the peer, at once, so that a newer link may connect to it. No hand-off may be open."""
        self.disconnect()
        if self._renewing is not None:
            self._renewing.cancel()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _handshake(self, transport_name: str) -> Transport:
        if self._refused is not None:
            raise self._refused
        try:
            theirs = await self.peer.handshake(self._me, self.incarnation)
            transport, metadata = choose_transport(self._me, theirs, self.incarnation, self._transports, transport_name)
        except HandoffError as error:
            if error.reason is FailureReason.INCOMPATIBLE:
                self._refused = error  # nothing will change within this incarnation
            raise
        await asyncio.wrap_future(transport.connect(self.incarnation, metadata, PeerSignalling(self.peer)))
        self._connected[transport_name] = self._connected[transport.name] = transport
        return transport

    async def _knock(self) -> None:
        """Returns once it has answered."""
        while True:
            with suppress(PeerUnavailable):
                await self.peer.handshake(self._me, self.incarnation)
                self._is_suspect = False
                return
            await asyncio.sleep(KNOCK_EVERY_S)

    def _check_doubts(self, transport_name: str) -> None:
        """Else each hand-off that comes would leave staging slots in doubt, until none is left. Raises HandoffError."""
        in_doubt = [read for read in self._in_doubt.pop(transport_name, []) if not read.done()]
        since_s = asyncio.get_running_loop().time() - self._in_doubt_since
        if in_doubt and since_s < self._config.in_doubt_s:
            self._in_doubt[transport_name] = in_doubt
            detail = f"{len(in_doubt)} reads from {self.incarnation} are in doubt: none is added before they have ended"
            raise HandoffError(FailureReason.TRANSFER_FAILED, detail)

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        while self._leases:
            silent_at = self._heard_at + self._config.silent_peer_s
            left_s = silent_at - loop.time()
            await asyncio.sleep(min(self._config.renew_every_s, left_s if left_s > 0 else math.inf))
            try:
                async with asyncio.timeout_at(max(silent_at, loop.time() + self._config.renew_every_s)):
                    await self._renew_once(loop.time())
            except (PeerUnavailable, TimeoutError):
                self._lose_if_silent(loop.time())
            except Exception:
                logger.exception("the leases of %s could not be renewed", self.incarnation)
                self._lose_if_silent(loop.time())

    async def _renew_once(self, now: float) -> None:
        """A young lease is left out: its Open may still be on its way."""
        due = [lease for lease in self._leases.values() if now >= lease.started_at + self._config.renew_every_s]
        if not due:
            return
        alive = await self.peer.renew([lease.ticket for lease in due])
        for lease, is_alive in zip(due, alive, strict=True):
            if not is_alive:
                self._lose(lease, FailureReason.LEASE_EXPIRED, f"{self.incarnation} no longer leases {lease.ticket}")
        self.heard()

    def _lose_if_silent(self, now: float) -> None:
        if now < self._heard_at + self._config.silent_peer_s:
            return
        detail = f"{self.incarnation} was not heard for {self._config.silent_peer_s:g} s"
        for lease in list(self._leases.values()):
            self._lose(lease, FailureReason.PEER_SILENT, detail)
        self.heard()  # those that come now get their own time

    def _lose(self, lease: Lease, reason: FailureReason, detail: str) -> None:
        self._leases.pop(lease.ticket, None)
        if not lease.lost.done():
            lease.lost.set_result(HandoffError(reason, detail))

    async def _close_session(self, ticket: Ticket) -> None:
        with suppress(PeerUnavailable, TimeoutError):  # then the lease runs out
            async with asyncio.timeout(self._config.verdict_timeout_s):
                await self.peer.close(ticket)
