"""What the ends of a two-sided transport say to each other beside the communicator: who joins, and what is sent next.

Every message may be repeated: the second one changes nothing.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from kv_transfer.block_part import BlockPart

NAME_BYTES = 16
DIGEST_BYTES = 16
HEADER = struct.Struct(f"<{NAME_BYTES}sQQ{DIGEST_BYTES}s")  # communicator, sequence, bytes that follow, digest


@dataclass(frozen=True, slots=True)
class Invitation:
    """D asks P into a communicator that it has named."""

    transport: str
    communicator: bytes  # 16 random bytes
    reader: str  # D's incarnation
    source: str  # that of the P it means
    rendezvous: bytes  # how the two meet; each kind of communicator reads its own


@dataclass(frozen=True, slots=True)
class SendOrder:
    """D asks P to send one entry. Agreed to, both take their part in it when its number is due."""

    transport: str
    communicator: bytes
    sequence: int  # from 0, without gaps
    blocks: tuple[int, ...]
    part: BlockPart

    def header(self, block_bytes: int) -> bytes:
        """What precedes the entry's bytes. Raises ValueError for a part that no block has."""
        part = self.part.within(block_bytes)
        digest = blake2b(struct.pack(f"<QQ{len(self.blocks)}Q", part.start, part.stop, *self.blocks), digest_size=16)
        num_bytes = len(self.blocks) * len(part)
        return HEADER.pack(self.communicator, self.sequence, num_bytes, digest.digest())


class Signalling(Protocol):
    """D's way to one P. Any thread may call, and both return at once.

    The future fails with PeerUnavailable when no answer came, and with TransferFailed when it was a refusal.
    """

    def join(self, invitation: Invitation) -> Future[None]: ...

    def send(self, order: SendOrder) -> Future[None]: ...


class SignallingPeer(Protocol):
    """A `Peer`, as far as this goes."""

    async def join(self, invitation: Invitation) -> None: ...

    async def send(self, order: SendOrder) -> None: ...


class PeerSignalling:
    """Calls the peer on the event loop that this was made on."""

    def __init__(self, peer: SignallingPeer) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()

    def join(self, invitation: Invitation) -> Future[None]:
        return self._start(self._peer.join(invitation))

    def send(self, order: SendOrder) -> Future[None]:
        return self._start(self._peer.send(order))

    def _start(self, call: Coroutine[Any, Any, None]) -> Future[None]:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as error:  # the loop has closed
            call.close()
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed
