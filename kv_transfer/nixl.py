"""The transport between processes: NIXL over UCX, on a thread of its own that makes every call into NIXL.

It polls only while a read may be open, on either side, and otherwise sleeps on its inbox; nobody waits for that thread.
Posting a read can block it for the whole copy, so one is posted at a time, the lowest order first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from engine.kv_cache import KVCache
from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.inbox import Command, Inbox
from kv_transfer.nixl_agent import NixlAgent, ReadState
from kv_transfer.nixl_read import Connection, Read
from kv_transfer.signalling import Signalling
from kv_transfer.staging import Slot, StagingRing
from kv_transfer.transport import TransferFailed

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
READING_POLL_S = 0.0002
AWAKE_POLL_S = 0.001
IN_DOUBT_POLL_S = 0.02  # of reads that have been running for longer than the next one
IN_DOUBT_AFTER_S = 5.0


class NixlTransport:
    """Maintains one agent, named for the incarnation. A peer's restart is another incarnation, so another agent.

    `on_failed` is called once, in the transport's thread, with a reason, when that thread ends although nobody closed
    the transport. Whatever waits for it is refused then, except for reads that were posted: they stay in doubt.

    A limit of UCX over TCP: a source that was stalled, and answers a read only after its reader has died, is aborted by
    UCX ("unexpected error: Endpoint timeout"), and must be restarted by its supervisor. Readers only see a failed read.
    """

    name = "nixl"

    def __init__(
        self,
        incarnation: str,
        cache: KVCache,
        ring: StagingRing,
        ucx_tls: str | None = None,
        ucx_net_devices: str | None = None,
        on_failed: Callable[[str], None] = logger.error,
    ) -> None:
        self._connections: dict[str, Connection] = {}
        self._waiting: list[Read] = []  # to be posted; no more than there are staging slots
        self._reads: list[Read] = []  # posted
        self._awake = False
        self._closing_at: float | None = None
        self._on_failed = on_failed
        self._inbox = Inbox()
        metadata: Future[bytes] = Future()
        ucx = {"TLS": ucx_tls, "NET_DEVICES": ucx_net_devices}
        self._thread = threading.Thread(
            target=self._main,
            args=(lambda: NixlAgent(incarnation, cache.as_bytes(), ring.memory, cache.block_bytes, ucx), metadata),
            name="nixl",
            daemon=True,
        )
        self._thread.start()
        self._metadata = metadata.result(START_TIMEOUT_S)

    def metadata(self) -> bytes:
        return self._metadata

    def connect(self, peer: str, metadata: bytes, signalling: Signalling | None = None) -> Future[None]:
        connected: Future[None] = Future()
        return self._inbox.put(Command(connected, lambda: self._connect(peer, metadata, connected), connects=peer))

    def read(
        self, peer: str, blocks: Sequence[int], slot: Slot, order: float = 0.0, part: BlockPart = WHOLE
    ) -> Future[None]:
        read: Future[None] = Future()
        read.set_running_or_notify_cancel()
        return self._inbox.put(Command(read, lambda: self._queue(peer, tuple(blocks), part, slot.index, read, order)))

    def forget(self, peer: str) -> None:
        self._inbox.put(Command(Future(), lambda: self._forget(peer)))

    def keep_awake(self, awake: bool) -> None:
        self._awake = awake
        self._inbox.put(Command(Future(), lambda: None))

    def close(self, timeout_s: float = 5.0) -> None:
        self._closing_at = time.monotonic() + timeout_s
        self._inbox.put(Command(Future(), lambda: None))
        self._thread.join(timeout_s + 1.0)

    def _main(self, make_agent: Callable[[], NixlAgent], metadata: Future[bytes]) -> None:
        try:
            self._agent = make_agent()
            metadata.set_result(self._agent.metadata())
        except Exception as error:  # noqa: BLE001  handed to the constructor, which raises it
            metadata.set_exception(error)
            return
        try:
            while not self._may_end():
                for command in self._inbox.take(self._poll_s()):
                    self._run(command)
                if self._waiting:
                    self._post_next()
                if self._reads or self._awake:
                    self._progress()
        except Exception as error:
            logger.exception("the nixl transport failed")
            reason = f"the nixl transport failed: {type(error).__name__}: {error}"
            self._agent.leak()  # nothing is known of what it still does
            self._refuse(reason)
            self._on_failed(reason)
        else:
            self._refuse("the transport is closed")
            self._end()

    def _may_end(self) -> bool:
        is_idle = not self._reads and not self._waiting
        return self._closing_at is not None and (is_idle or time.monotonic() >= self._closing_at)

    def _poll_s(self) -> float | None:
        if self._waiting:
            return 0.0
        if self._reads and time.monotonic() - self._reads[-1].started_at < IN_DOUBT_AFTER_S:
            return READING_POLL_S
        if self._awake:
            return AWAKE_POLL_S
        return IN_DOUBT_POLL_S if self._reads else None

    def _run(self, command: Command) -> None:
        going = self._connections.get(command.connects) if command.connects is not None else None
        if going is not None and going.forgotten:
            going.again = [c for c in (*going.again, command) if not c.future.cancelled()]
            return
        if not command.future.running() and not command.future.set_running_or_notify_cancel():
            return
        try:
            command.run()
        except TransferFailed as error:
            command.future.set_exception(error)
        except Exception as error:
            logger.exception("a command of the nixl transport failed")
            command.future.set_exception(TransferFailed(f"{type(error).__name__}: {error}"))

    def _connect(self, peer: str, metadata: bytes, connected: Future[None]) -> None:
        if peer not in self._connections:
            self._connections[peer] = Connection(self._agent.add_peer(peer, metadata))
        connected.set_result(None)

    def _queue(
        self, peer: str, blocks: tuple[int, ...], part: BlockPart, slot: int, future: Future[None], order: float
    ) -> None:
        connection = self._connections.get(peer)
        if connection is None or connection.forgotten:
            raise TransferFailed(f"{peer} is not connected")
        connection.num_reads += 1
        self._waiting.append(Read(connection, blocks, part, slot, future, order))

    def _post_next(self) -> None:
        read = min(self._waiting, key=lambda read: read.order)
        self._waiting.remove(read)
        try:
            read.handle = self._agent.make_read(read.connection.blocks, read.blocks, read.part, read.slot)
        except TransferFailed as error:
            self._resolve(read, error)
            return
        except Exception as error:  # nothing was posted, so it costs this read only
            logger.exception("a read could not be prepared")
            self._resolve(read, TransferFailed(f"{type(error).__name__}: {error}"))
            return
        read.started_at = time.monotonic()
        self._reads.append(read)
        try:
            state = self._agent.post(read.handle)
        except TransferFailed as error:
            read.error = error
            state = self._state(read.handle)
        if state is not ReadState.RUNNING:
            self._finish(read, state)

    def _state(self, handle: Any) -> ReadState:
        try:
            return self._agent.state(handle)
        except TransferFailed:
            return ReadState.FAILED

    def _progress(self) -> None:
        try:
            self._agent.progress()
        except TransferFailed as error:  # the reads that it concerns say so themselves
            logger.warning("nixl: %s", error)
        for read in list(self._reads):
            try:
                state = self._agent.state(read.handle)
            except TransferFailed as error:
                self._finish(read, ReadState.FAILED, error)
            else:
                if state is not ReadState.RUNNING:
                    self._finish(read, state)

    def _finish(self, read: Read, state: ReadState, error: TransferFailed | None = None) -> None:
        self._reads.remove(read)
        try:
            self._agent.release(read.handle)
        except TransferFailed as failure:
            logger.warning("nixl: %s", failure)
        error = read.error or error
        if state is ReadState.FAILED and error is None:
            error = TransferFailed(f"a read from {read.connection.blocks.peer} ended in state ERR")
        self._resolve(read, error)

    def _resolve(self, read: Read, error: TransferFailed | None) -> None:
        read.connection.num_reads -= 1
        if error is None:
            read.future.set_result(None)
        else:
            read.future.set_exception(error)
        self._drop_if_forgotten(read.connection)

    def _forget(self, peer: str) -> None:
        connection = self._connections.get(peer)
        if connection is not None:
            connection.forgotten = True
            self._drop_if_forgotten(connection)

    def _drop_if_forgotten(self, connection: Connection) -> None:
        if not connection.forgotten or connection.num_reads:
            return
        del self._connections[connection.blocks.peer]
        try:
            self._agent.remove_peer(connection.blocks)
        except TransferFailed as error:
            logger.warning("nixl: %s", error)
        finally:
            for command in connection.again:
                self._run(command)

    def _refuse(self, reason: str) -> None:
        """All that waits for this thread, except for reads in doubt, and all that comes later."""
        for read in self._waiting:
            if not read.future.done():
                read.future.set_exception(TransferFailed(reason))
        for connection in self._connections.values():
            for command in connection.again:
                command.refuse(reason)
        self._inbox.close(reason)

    def _end(self) -> None:
        if self._reads:
            logger.warning("nixl: closed with %d reads in doubt", len(self._reads))
            self._agent.leak()
            return
        for connection in list(self._connections.values()):
            connection.forgotten = True
            self._drop_if_forgotten(connection)
        del self._agent
