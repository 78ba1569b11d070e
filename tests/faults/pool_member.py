"""A pool node as far as KV goes: arena, store, puller and ring, without gRPC; it may also be stopped for a while.

It is one incarnation. A dead one does nothing more; the next one is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.kv_cache import KVCache
from kv_transfer.config import TransferConfig
from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.pool_config import PoolConfig
from kv_transfer.pool_ring import PoolMember
from kv_transfer.pool_source import OfferingWorker, SourceDirectory
from kv_transfer.staging import StagingRing
from tests.faults.mortal import MortalTransport, peer_info, ring_left_over


class PoolMemberNode:
    """Maintains its node's ticks while it lives. While it is stopped, nothing gets to it and nothing comes from it."""

    def __init__(
        self,
        name: str,
        incarnation: str,
        arena: KVCache,
        fingerprint: str,
        transport: MortalTransport,
        config: TransferConfig,
        reach: Callable[[PoolMemberNode, str], OfferingWorker],  # a worker, by its address
        on_exhausted: Callable[[PoolMemberNode], None],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.arena = arena
        self.transport = transport
        self.is_dead = False
        self.dies_silently = False
        self.skew_s = 0.0
        self.member = PoolMember(name, incarnation, incarnation)
        self.goes_on_at = 0.0
        self._loop = asyncio.get_running_loop()
        info = peer_info(incarnation, arena, fingerprint, transport)
        self._ring = StagingRing(config, arena.block_bytes, "cpu", lambda _: on_exhausted(self))
        sources = SourceDirectory(info, transport, config, lambda address: reach(self, address))
        offer_s = 2 * config.pool_offer_timeout_s
        pool = PoolConfig(ram_bytes=arena.num_blocks * arena.block_bytes, max_pulls=2, offer_timeout_s=offer_s)
        self.node = LocalPoolNode(info, arena, transport, self._ring, sources, pool, config, clock=self._now)
        self._ticking = self._loop.create_task(self.node.run())

    def stop_for(self, seconds: float) -> None:
        self.goes_on_at = max(self.goes_on_at, self._loop.time() + seconds)

    def stopped_s(self) -> float:
        """How long from now on."""
        return max(0.0, self.goes_on_at - self._loop.time())

    async def pass_by(self) -> None:
        """Returns once it goes on."""
        while (stopped_s := self.stopped_s()) > 0:  # noqa: ASYNC110  it may be stopped for longer meanwhile
            await asyncio.sleep(stopped_s)

    def die(self, silently: bool) -> None:
        self.is_dead = True
        self.dies_silently = silently
        self.transport.die(silently)
        self._ticking.cancel()

    async def close(self) -> None:
        self._ticking.cancel()
        await self.node.stop()

    def left_over(self) -> list[str]:
        store = self.node.store
        store.check_integrity()
        counts = store.counts()
        found = ring_left_over(self._ring, self.transport.num_lost)
        if counts.num_incomplete or counts.num_leased or store.has_leases:
            found.append(f"{counts}, {store.has_leases=}")
        if counts.num_free + counts.num_objects != self.arena.num_blocks:
            found.append(f"{counts} of {self.arena.num_blocks} slots")
        return [f"{self.incarnation}: {text}" for text in found]

    def _now(self) -> float:
        return self._loop.time() + self.skew_s
