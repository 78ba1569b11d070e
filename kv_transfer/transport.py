"""How bytes get from a peer's KV blocks into a staging slot: one small interface, which knows no session and no lease.

Three exist: `NixlTransport` and `TwoSidedTransport` between processes, `LocalTransport` within one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.signalling import Signalling
from kv_transfer.staging import Slot


class TransferFailed(Exception):
    """A read or a connection ended with an error; the message says which call failed and how."""


class Transport(Protocol):
    """Moves KV. Every method returns at once; the work is done on the transport's own thread."""

    @property
    def name(self) -> str: ...

    def metadata(self) -> bytes:
        """What a peer needs to read this worker's cache; goes into `connect` on the other side."""
        ...

    def connect(self, peer: str, metadata: bytes, signalling: Signalling | None = None) -> Future[None]:
        """Makes `peer`, an incarnation, readable. Fails with TransferFailed.

        `signalling`: how the peer can be called, for a transport whose peers must be asked to send.
        """
        ...

    def read(
        self, peer: str, blocks: Sequence[int], slot: Slot, order: float = 0.0, part: BlockPart = WHOLE
    ) -> Future[None]:
        """Reads that part of each of the peer's blocks into the slot, side by side without gaps, as listed.

        No more blocks than `StagingRing.blocks_in_slot` allows. Of reads that wait for one another the one with the
        lowest `order` goes first, then the first come. The future is resolved, with TransferFailed if so, once nothing
        can touch the slot any more: not resolved means in doubt, whatever time has passed. It cannot be cancelled.
        """
        ...

    def forget(self, peer: str) -> None:
        """Lets go of all that is kept for `peer`, once none of its reads is in doubt."""
        ...

    def keep_awake(self, awake: bool) -> None:
        """While true, peers may be reading from here: the transport must take part, even if it reads nothing itself."""
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends the thread. A read in doubt stays so for as long as the process lives."""
        ...
