"""Pool nodes in this process, which a test may stop or kill, and workers' clients of them: real but for the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from time import monotonic

from engine.kv_cache import KVCache, KVLayout
from kv_transfer.block_offer import BlockOffers
from kv_transfer.config import TransferConfig
from kv_transfer.local import LocalNetwork, LocalTransport
from kv_transfer.local_offers import LocalOffers
from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.messages import BlockRef, FailureReason, PeerInfo, Ticket, TransportInfo
from kv_transfer.peer import PeerUnavailable
from kv_transfer.pool_client import PoolClient
from kv_transfer.pool_config import PoolConfig
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_reader import PoolReader
from kv_transfer.pool_ring import PoolMember
from kv_transfer.pool_source import SourceDirectory
from kv_transfer.pool_writer import PoolWriter
from kv_transfer.staging import StagingRing
from tests.unit.workers.side import Side


class OfferingEnd:
    """A worker as nodes call it."""

    def __init__(self, info: PeerInfo, offers: LocalOffers) -> None:
        self._info = info
        self._offers = offers

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        if incarnation != self._info.incarnation:
            raise PeerUnavailable(f"{incarnation} is not here")
        return self._info

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        return await self._offers.commit(ticket, refs)

    async def disconnect(self) -> None:
        """There is no connection."""


class PoolEnd:
    """One start of one node, as workers reach it. `goes_on` cleared: it is stopped; `is_dead`: nobody answers.

    `before`, where a test sets it, is called with the name of each call before it gets through.
    """

    def __init__(self, member: PoolMember, node: LocalPoolNode, transport: LocalTransport) -> None:
        self.member = member
        self.node = node
        self.transport = transport
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.is_dead = False
        self.before: Callable[[str], None] = lambda call: None
        self.calls: list[str] = []

    def stop(self) -> None:
        self.goes_on.clear()

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        await self._get_through("handshake")
        return await self.node.handshake(me, incarnation)

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        await self._get_through("lookup")
        return await self.node.lookup(reader, keys)

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        await self._get_through("commit")
        return await self.node.commit(reader, keys, refs)

    async def close(self, reader: Ticket) -> None:
        await self._get_through("close")
        await self.node.close(reader)

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        await self._get_through("offer")
        return await self.node.offer(source, keys, refs)

    async def disconnect(self) -> None:
        """There is no connection."""

    async def _get_through(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)
        if self.is_dead:
            raise PeerUnavailable(f"{self.member.incarnation} is dead")
        await self.goes_on.wait()


class Pools:
    """Maintains the nodes that a test started, by name, and every worker that may be called."""

    def __init__(self, network: LocalNetwork, layout: KVLayout, config: TransferConfig) -> None:
        self.ends: dict[str, PoolEnd] = {}
        self.failures: list[FailureReason] = []
        self._network = network
        self._layout = layout
        self._config = config
        self._workers: dict[str, OfferingEnd] = {}
        self._numbers = itertools.count()

    @property
    def members(self) -> list[PoolMember]:
        return [end.member for end in self.ends.values()]

    def start_node(self, worker: PeerInfo, name: str = "pool-0", num_slots: int = 64) -> PoolEnd:
        """One that can share KV with `worker`; empty, and a new incarnation of its name."""
        incarnation = f"{name}-{next(self._numbers)}"
        arena = KVCache(self._layout, num_slots)
        transport = LocalTransport(incarnation, arena, self._network)
        info = PeerInfo(incarnation, worker.compatibility, (TransportInfo("local", b""),))
        ring = StagingRing(self._config, arena.block_bytes, "cpu", lambda reason: None)
        sources = SourceDirectory(info, transport, self._config, lambda address: self._workers[address])
        settings = PoolConfig(ram_bytes=1, watermark=1.0)
        node = LocalPoolNode(info, arena, transport, ring, sources, settings, self._config, clock=monotonic)
        end = self.ends[name] = PoolEnd(PoolMember(name, incarnation, incarnation), node, transport)
        return end

    def client(self, side: Side) -> PoolClient:
        """Of one worker."""
        offers = BlockOffers(side.engine.engine.pool, self._config.lease_s, lambda awake: None)
        self._workers[side.info.incarnation] = OfferingEnd(side.info, LocalOffers(offers, side.engine))
        nodes = PoolNodes(side.info, self._open, {"local": side.transport}, self._config, self.failures.append)
        writer = PoolWriter(nodes, side.engine, offers, side.info.incarnation, self._config)
        writer.serve_at(side.info.incarnation)
        return PoolClient(nodes, PoolReader(nodes, side.engine, side.ring, self._config), writer)

    async def stop(self) -> None:
        for end in self.ends.values():
            end.goes_on.set()
            end.transport.resume()
            await end.node.stop()
            end.transport.close()

    def _open(self, member: PoolMember) -> PoolEnd:
        return next(end for end in self.ends.values() if end.member == member)
