"""What one worker keeps of one start of one pool node: the connection, and whether the node answers.

A node that failed is avoided by every request at once, and used again only after it has answered in the background: no
request waits twice for a node that is dead or stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from kv_transfer.config import TransferConfig
from kv_transfer.introduction import choose_transport
from kv_transfer.messages import FailureReason, HandoffError, PeerInfo, Ticket
from kv_transfer.peer import PeerUnavailable
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_ring import PoolMember
from kv_transfer.transport import TransferFailed, Transport

T = TypeVar("T")
SESSION_BYTES = 16
NODE_FAILED = (PeerUnavailable, TransferFailed, HandoffError, TimeoutError)  # what talking to a node may raise
logger = logging.getLogger(__name__)


def new_ticket() -> Ticket:
    return Ticket(os.urandom(SESSION_BYTES), attempt=1)


def failure_reason(error: BaseException) -> FailureReason:
    """What one of NODE_FAILED comes to."""
    match error:
        case HandoffError():
            return error.reason
        case TransferFailed():
            return FailureReason.TRANSFER_FAILED
        case PeerUnavailable():
            return FailureReason.PEER_UNAVAILABLE
        case _:
            return FailureReason.PEER_SILENT


class PoolLink:
    """Maintains: at most one handshake and one probe at a time. Lives on one event loop."""

    def __init__(
        self,
        member: PoolMember,
        node: PoolNode,
        me: PeerInfo,
        transports: Mapping[str, Transport],
        config: TransferConfig,
        on_failed: Callable[[FailureReason], None],
    ) -> None:
        self.member = member
        self.node = node
        self.on_failed = on_failed
        self.reading = asyncio.Lock()  # one prompt at a time: so few slots are in doubt when the node stops
        self._me = me
        self._transports = transports  # by name, the preferred one first
        self._config = config
        self._connecting: asyncio.Task[Transport] | None = None
        self._transport: Transport | None = None
        self._fault: str | None = None  # why it is avoided
        self._refused = False  # for good: the two could never share KV
        self._retry_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[Any]] = set()
        self._probing = False

    def is_usable(self) -> bool:
        """False for a node that failed; when its time is up it is asked in the background whether it is back."""
        if self._fault is not None and not self._refused and asyncio.get_running_loop().time() >= self._retry_at:
            self._start_probe()
        return self._fault is None

    def start_connecting(self) -> asyncio.Task[Transport]:
        """In the background; again only after a failure that is known."""
        is_over = self._connecting is not None and self._connecting.done() and self._fault is not None
        if self._connecting is None or (is_over and self._transport is None):
            self._connecting = asyncio.get_running_loop().create_task(self._introduce())
            self._connecting.add_done_callback(self._after_connecting)
        return self._connecting

    async def connect(self) -> Transport:
        """The transport to read with. Raises one of NODE_FAILED; when who waits gives up, the connecting goes on."""
        if self._transport is not None:
            return self._transport
        return await asyncio.shield(self.start_connecting())

    async def ask(self, call: Coroutine[Any, Any, T]) -> T:
        """The answer to a call that may take long, as long as the node answers others in `pool_lookup_timeout_s`.

        Raises one of NODE_FAILED, also as soon as another call shows that the node does not answer.
        """
        task = asyncio.get_running_loop().create_task(call)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # who asked may be gone by then
        self._asking.add(task)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=self._config.pool_lookup_timeout_s)
                if not task.done():
                    await self._check_lives()
            if task.cancelled():
                raise PeerUnavailable(f"{self.member.incarnation} is avoided: {self._fault}")
            return task.result()
        finally:
            task.cancel()
            self._asking.discard(task)

    def failed(self, error: BaseException) -> None:
        """It did not answer, or not well: nobody asks it for `pool_avoid_s`, nor then before a probe went well."""
        reason = str(error) or type(error).__name__
        kind = failure_reason(error)
        if self._fault is None:
            self.on_failed(kind)
            logger.warning("pool node %s is avoided: %s", self.member.incarnation, reason)
        self._fault = reason
        self._refused = kind is FailureReason.INCOMPATIBLE
        self._retry_at = asyncio.get_running_loop().time() + self._config.pool_avoid_s
        if self._connecting is not None and not self._connecting.done() and not self._refused:
            self._start_probe()  # it may only be slow to connect
        if kind is FailureReason.TRANSFER_FAILED:
            self._disconnect()
        for task in self._asking:
            task.cancel()

    def close_read(self, ticket: Ticket) -> None:
        """Tells the node in the background, once and within a deadline, that this reader reads no more."""
        self._in_background(self._close_read(ticket))

    async def close(self) -> None:
        """Lets go of the node, at once. Nobody may be reading from it."""
        tasks: set[asyncio.Task[Any]] = {*self._tasks, *([self._connecting] if self._connecting else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._disconnect()
        await self.node.disconnect()

    def _disconnect(self) -> None:
        if self._transport is not None:
            self._transport.forget(self.member.incarnation)
            self._transport = None

    async def _introduce(self) -> Transport:
        async with asyncio.timeout(self._config.handshake_timeout_s):
            theirs = await self.node.handshake(self._me, self.member.incarnation)
            transport, metadata = choose_transport(self._me, theirs, self.member.incarnation, self._transports)
            await asyncio.wrap_future(transport.connect(self.member.incarnation, metadata))
        self._transport = transport
        return transport

    def _after_connecting(self, connecting: asyncio.Task[Transport]) -> None:
        """Whether anybody waits for it or not."""
        if not connecting.cancelled() and (error := connecting.exception()) is not None:
            self.failed(error)

    def _start_probe(self) -> None:
        if not self._probing:
            self._probing = True
            self._in_background(self._probe())

    async def _probe(self) -> None:
        """A handshake, where there is none yet, and an empty lookup."""
        try:
            async with asyncio.timeout(self._config.handshake_timeout_s):
                await self.connect()
                await self.node.lookup(new_ticket(), [])
        except NODE_FAILED as error:
            self.failed(error)
        else:
            logger.info("pool node %s is used again", self.member.incarnation)
            self._fault = None
        finally:
            self._probing = False

    async def _check_lives(self) -> None:
        async with asyncio.timeout(self._config.pool_lookup_timeout_s):
            await self.node.lookup(new_ticket(), [])

    async def _close_read(self, ticket: Ticket) -> None:
        try:
            async with asyncio.timeout(self._config.pool_lookup_timeout_s):
                await self.node.close(ticket)
        except (PeerUnavailable, TimeoutError):
            return  # then the lease runs out

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
