"""A worker's part in pooled mode, as `KVPlane` builds it: what it reads from nodes, and what it offers to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.engine_thread import EngineThread
from kv_transfer.block_offer import BlockOffers
from kv_transfer.config import TransferConfig
from kv_transfer.introduction import admit
from kv_transfer.local_offers import LocalOffers
from kv_transfer.messages import BlockRef, PeerInfo, Ticket
from kv_transfer.pool_client import PoolClient
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_reader import PoolRead, PoolReader
from kv_transfer.pool_ring import PoolMember
from kv_transfer.pool_writer import PoolWriter
from kv_transfer.staging import StagingRing
from tests.faults.mortal import MortalTransport


class PoolSide:
    """An `OfferingWorker` too. Maintains how many tokens' KV was read."""

    def __init__(
        self,
        me: PeerInfo,
        thread: EngineThread,
        transport: MortalTransport,
        ring: StagingRing,
        config: TransferConfig,
        open_node: Callable[[PoolMember], PoolNode],
        clock: Callable[[], float],
    ) -> None:
        self.num_tokens_read = 0
        self._me = me
        self._awake = False
        self._offers = BlockOffers(thread.engine.pool, config.lease_s, self._keep_awake)
        self._answers = LocalOffers(self._offers, thread, clock)
        nodes = PoolNodes(me, open_node, {transport.name: transport}, config)
        writer = PoolWriter(nodes, thread, self._offers, me.incarnation, config, clock)
        writer.serve_at(me.incarnation)  # the address by which nodes find it here
        self.client = PoolClient(nodes, PoolReader(nodes, thread, ring, config), writer)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return admit(self._me, me, incarnation)

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        return await self._answers.commit(ticket, refs)

    async def disconnect(self) -> None:
        """There is no connection."""

    def note_read(self, read: PoolRead) -> None:
        self.num_tokens_read += read.num_received

    def left_over(self) -> list[str]:
        found = [f"{self._offers.num_blocks} blocks are offered"] if self._offers.num_blocks else []
        return [*found, "the transport is kept awake for nodes"] if self._awake else found

    def _keep_awake(self, awake: bool) -> None:
        self._awake = awake
