"""A pool node as a worker sees it. The gRPC client in `cluster` is one, `LocalPoolNode` the other.

A node is a cache: whatever it answers, or does not, costs a recomputation at most. Deadlines are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kv_transfer.messages import BlockRef, PeerInfo, Ticket
from kv_transfer.pool_messages import OfferSource


class PoolNode(Protocol):
    """Every method raises `peer.PeerUnavailable` when the node cannot be reached."""

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        """Introduces a worker to the node of that incarnation; what it answers has the metadata to read it with.

        Raises HandoffError: INCOMPATIBLE when the two could not share KV (for good), PEER_UNAVAILABLE when another
        incarnation serves there.
        """
        ...

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        """Where each key's block is, None for one that the node does not have, or not completely yet.

        Leases what it finds for `lease_s`; the reader may call again with the same ticket, which adds to the lease and
        starts its time anew. The refs are blocks of the node's arena: `Transport.read(incarnation, blocks, …)`.
        """
        ...

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        """After the read: whether each block was, all the time since the lookup, the key's. Ends the whole lease.

        A reader commits once, with all that it read, and uses nothing that is not called valid. A repeated commit, or
        one after the lease has run out, is answered with False.
        """
        ...

    async def close(self, reader: Ticket) -> None:
        """Drops the lease without a verdict. Idempotent; a lease that nobody closes ends after `lease_s`."""
        ...

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        """Whether the node now has each key, because it just pulled and committed it with the source, or had it before.

        The source leases the blocks first (`block_offer.BlockOffers`) and lets go once this has answered or failed. The
        node answers within its own `offer_timeout_s`; False means no more than that it has no room, no time, or another
        source that is just bringing the same.
        """
        ...

    async def disconnect(self) -> None:
        """Lets go of the connection; later calls raise PeerUnavailable."""
        ...
