"""The pool nodes that this worker talks to: a link for each start of each node that a request brought along.

The nodes travel with the requests, so two requests may know different ones for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from kv_transfer.config import TransferConfig
from kv_transfer.messages import FailureReason, PeerInfo
from kv_transfer.pool_link import PoolLink
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_ring import PoolMember, PoolRing
from kv_transfer.transport import Transport


class PoolNodes:
    """Maintains a link per incarnation, and the ring of the newest membership. A link that nothing used for
    `idle_peer_s` is let go of."""

    def __init__(
        self,
        me: PeerInfo,
        open_node: Callable[[PoolMember], PoolNode],
        transports: Mapping[str, Transport],
        config: TransferConfig,
        on_failed: Callable[[FailureReason], None] = lambda reason: None,
    ) -> None:
        self._me = me
        self._open_node = open_node
        self._transports = transports
        self._config = config
        self._on_failed = on_failed  # of each failure that makes a node be avoided, and of each read in vain
        self._ring = PoolRing(())
        self._links: dict[PoolMember, PoolLink] = {}
        self._used_at: dict[PoolMember, float] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def spread(self, members: Sequence[PoolMember], keys: Sequence[bytes]) -> list[tuple[PoolLink, list[int]]]:
        """For each node that answers and keeps any of the keys: its link, and the places of its keys, in order."""
        if set(members) != set(self._ring.members):
            self._ring = PoolRing(members)
            for member in members:
                self._link(member).start_connecting()  # so that nobody's lookup waits for that later
        links = [(self._link(member), places) for member, places in self._ring.spread(keys).items()]
        self._forget_idle()
        return [(link, places) for link, places in links if link.is_usable()]

    async def close(self) -> None:
        for member in list(self._links):
            self._let_go(member)
        if self._closing:
            await asyncio.wait(self._closing)

    def _link(self, member: PoolMember) -> PoolLink:
        link = self._links.get(member)
        if link is None:
            node = self._open_node(member)
            link = PoolLink(member, node, self._me, self._transports, self._config, self._on_failed)
            self._links[member] = link
        self._used_at[member] = asyncio.get_running_loop().time()
        return link

    def _forget_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for member, used_at in list(self._used_at.items()):
            if now - used_at > self._config.idle_peer_s:
                self._let_go(member)

    def _let_go(self, member: PoolMember) -> None:
        """In the background: nobody's request waits for the end of an old node."""
        del self._used_at[member]
        closing = asyncio.get_running_loop().create_task(self._links.pop(member).close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
