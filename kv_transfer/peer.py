"""A prefill worker as a decode worker sees it. The gRPC client in `decode_worker` is one, `LocalPeer` the other.

Every method may be called late, twice or in any order; `lease.LeaseTable` says what each then means.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from kv_transfer.messages import BlockRef, PeerInfo, SessionEvent, Ticket, Verdict
from kv_transfer.signalling import Invitation, SendOrder


class PeerUnavailable(Exception):
    """The call did not get through, or its answer did not: it may or may not have happened."""


class Peer(Protocol):
    """Raises PeerUnavailable when the other side cannot be reached. Deadlines are the caller's."""

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        """Introduces D to the P of that incarnation. Raises HandoffError when the two could not share KV."""
        ...

    def open(self, ticket: Ticket, have_tokens: int) -> AsyncGenerator[SessionEvent, None]:
        """Starts or resumes the lease. The whole state comes first; PrefillDone or SessionEnded is the last event."""
        ...

    async def renew(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Whether each is still leased."""
        ...

    async def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], transport: str = "") -> Verdict:
        """`transport`: the name of the one that they were read with, which P counts."""
        ...

    async def close(self, ticket: Ticket) -> None: ...

    async def join(self, invitation: Invitation) -> None:
        """Has the two-sided transport of that name meet D's new communicator. Raises TransferFailed when refused."""
        ...

    async def send(self, order: SendOrder) -> None:
        """Has it send an entry at its turn. Raises TransferFailed when refused."""
        ...
