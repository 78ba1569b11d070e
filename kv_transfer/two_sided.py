"""A transport whose ends send and receive, over one communicator for each pair of incarnations and direction.

Reads are still pulled: the reader asks, over its signalling, for what the source then sends. What a communicator is
made of is its kind's to know. An aborted one is replaced with the next read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from engine.kv_cache import KVCache
from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.communicator import CommunicatorKind
from kv_transfer.config import TransferConfig
from kv_transfer.read_end import Read, ReadEnd
from kv_transfer.send_end import SendEnd
from kv_transfer.signalling import NAME_BYTES, Invitation, SendOrder, Signalling
from kv_transfer.staging import Slot
from kv_transfer.transport import TransferFailed


class SourceMetadata(BaseModel):
    """What a reader must know of a source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    incarnation: str
    num_blocks: int = Field(ge=1)
    block_bytes: int = Field(ge=1)


@dataclass(frozen=True, slots=True)
class Source:
    """A peer that can be read from."""

    metadata: SourceMetadata
    signalling: Signalling


class TwoSidedTransport:
    """Maintains one read end for each source and one send end for each reader; more only while old ones end."""

    def __init__(self, incarnation: str, cache: KVCache, kind: CommunicatorKind, config: TransferConfig) -> None:
        self._incarnation = incarnation
        self._cache = cache
        self._kind = kind
        self._config = config
        self._lock = threading.Lock()  # guards all that follows; whoever holds it waits for nothing
        self._sources: dict[str, Source] = {}
        self._read_ends: dict[str, ReadEnd] = {}  # by source
        self._send_ends: dict[bytes, SendEnd] = {}  # by communicator
        self._leaving: dict[str, ReadEnd] = {}  # the last of each source that was forgotten
        self._closed = False

    @property
    def name(self) -> str:
        return self._kind.name

    def metadata(self) -> bytes:
        cache = self._cache
        mine = SourceMetadata(incarnation=self._incarnation, num_blocks=cache.num_blocks, block_bytes=cache.block_bytes)
        return mine.model_dump_json().encode()

    def connect(self, peer: str, metadata: bytes, signalling: Signalling | None = None) -> Future[None]:
        connected: Future[None] = Future()
        try:
            source = self._source(peer, metadata, signalling)
            with self._lock:
                self._check_open()
                self._sources[peer] = source
                ready = self._read_end(peer, source).ready
        except TransferFailed as error:
            connected.set_exception(error)
        else:
            ready.add_done_callback(lambda _: _pass_on(ready, connected))
        return connected

    def read(
        self, peer: str, blocks: Sequence[int], slot: Slot, order: float = 0.0, part: BlockPart = WHOLE
    ) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        try:
            self._start(peer, Read(tuple(blocks), part, slot, order, future))
        except TransferFailed as error:
            future.set_exception(error)
        return future

    def forget(self, peer: str) -> None:
        with self._lock:
            self._sources.pop(peer, None)
            end = self._read_ends.pop(peer, None)
            if end is not None:
                self._leaving = {left: other for left, other in self._leaving.items() if other.is_alive}
                self._leaving[peer] = end
                end.close()

    def keep_awake(self, awake: bool) -> None:
        """Readers say themselves what they want."""

    def join(self, invitation: Invitation) -> None:
        """Takes part, as the source, in a reader's new communicator; that reader's older ones end. Returns at once.

        Raises TransferFailed.
        """
        if len(invitation.communicator) != NAME_BYTES:
            raise TransferFailed(f"a communicator's name has {NAME_BYTES} bytes, not {len(invitation.communicator)}")
        with self._lock:
            self._check_open()
            if invitation.communicator in self._send_ends:
                return
            for end in self._send_ends.values():
                if end.invitation.reader == invitation.reader:
                    end.close()
            self._send_ends[invitation.communicator] = SendEnd(
                self._kind, invitation, self._cache, self._config, self._remove
            )

    def send(self, order: SendOrder) -> None:
        """Agrees to send what a reader has asked for, at its turn. Raises TransferFailed."""
        with self._lock:
            end = self._send_ends.get(order.communicator)
        if end is None:
            raise TransferFailed(f"{self._incarnation} knows no communicator {order.communicator.hex()[:8]}")
        end.send(order)

    def close(self, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._closed = True
            ends: list[ReadEnd | SendEnd] = [
                *self._read_ends.values(),
                *self._send_ends.values(),
                *self._leaving.values(),
            ]
            self._sources.clear()
        for end in ends:
            end.close()
        for end in ends:
            end.join(max(0.0, deadline - time.monotonic()))

    def _start(self, peer: str, read: Read) -> None:
        for _ in range(2):  # an end that takes no more is replaced
            with self._lock:
                self._check_open()
                source = self._sources.get(peer)
                if source is None:
                    raise TransferFailed(f"{peer} is not connected")
                _check_read(peer, source.metadata, read)
                end = self._read_end(peer, source)
            if end.read(read):
                return
            self._replace(peer, end)
        raise TransferFailed(f"{peer} cannot be met")

    def _source(self, peer: str, metadata: bytes, signalling: Signalling | None) -> Source:
        try:
            theirs = SourceMetadata.model_validate_json(metadata)
        except ValueError as error:
            raise TransferFailed(f"{peer} sent metadata that cannot be read: {error}") from error
        if theirs.incarnation != peer:
            raise TransferFailed(f"the metadata of {peer} is that of {theirs.incarnation}")
        if theirs.block_bytes != self._cache.block_bytes:
            raise TransferFailed(f"a block has {theirs.block_bytes} bytes on {peer} and {self._cache.block_bytes} here")
        if signalling is None:
            raise TransferFailed(f"{self.name} needs a way to call {peer}")
        return Source(theirs, signalling)

    def _read_end(self, peer: str, source: Source) -> ReadEnd:
        end = self._read_ends.get(peer)
        if end is None:
            cache = self._cache
            end = self._read_ends[peer] = ReadEnd(
                self._kind,
                self._incarnation,
                peer,
                cache.block_bytes,
                cache.tensor.device,
                source.signalling,
                self._config,
                on_failed=lambda failed: self._replace(peer, failed),
                after=self._leaving.pop(peer, None),
            )
        return end

    def _replace(self, peer: str, failed: ReadEnd) -> None:
        """The next read, or connect, makes another."""
        with self._lock:
            if self._read_ends.get(peer) is failed:
                del self._read_ends[peer]

    def _remove(self, ended: SendEnd) -> None:
        with self._lock:
            self._send_ends.pop(ended.invitation.communicator, None)

    def _check_open(self) -> None:
        if self._closed:
            raise TransferFailed("the transport is closed")


def _check_read(peer: str, source: SourceMetadata, read: Read) -> None:
    wrong = [block for block in read.blocks if not 0 <= block < source.num_blocks]
    if not read.blocks:
        raise TransferFailed("a read of no blocks")
    if wrong:
        raise TransferFailed(f"{peer} has no blocks {wrong}")
    try:
        num_bytes = len(read.blocks) * read.part.num_bytes(source.block_bytes)
    except ValueError as error:
        raise TransferFailed(str(error)) from None
    if num_bytes > len(read.slot.memory):
        raise TransferFailed(f"{num_bytes} bytes do not fit into a slot of {len(read.slot.memory)}")


def _pass_on(ready: Future[None], connected: Future[None]) -> None:
    if connected.set_running_or_notify_cancel():
        error = ready.exception()
        if error is None:
            connected.set_result(None)
        else:
            connected.set_exception(error)
