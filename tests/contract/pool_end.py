"""One start of one pool node in this process, which is told by a test what it has, or pulls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch

from engine.kv_cache import KVCache, KVLayout
from kv_transfer.config import TransferConfig
from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.messages import Compatibility, PeerInfo, Ticket, TransportInfo
from kv_transfer.pool_config import PoolConfig
from kv_transfer.pool_source import OfferingWorker, SourceDirectory
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from tests.contract.ends import MakeTransport

NUM_SLOTS = 12


class PoolEnd:
    """`wired`: around the transport that it pulls with. Leases end when a test says that time goes by."""

    def __init__(
        self,
        incarnation: str,
        layout: KVLayout,
        compatibility: Compatibility,
        config: TransferConfig,
        make_transport: MakeTransport,
        reach: Callable[[str], OfferingWorker],
        wired: Callable[[Transport], Transport] = lambda transport: transport,
    ) -> None:
        self.incarnation = incarnation
        self.arena = KVCache(layout, NUM_SLOTS)
        self.ring = StagingRing(config, layout.block_bytes, "cpu", lambda reason: None)
        self.transport = make_transport(incarnation, self.arena, self.ring)
        offered = TransportInfo(self.transport.name, self.transport.metadata())
        info = PeerInfo(incarnation, compatibility, (offered,))
        sources = SourceDirectory(info, wired(self.transport), config, reach)
        pool = PoolConfig(ram_bytes=1, watermark=1.0)
        self._lease_s = config.lease_s
        self._now = 0.0
        self.node = LocalPoolNode(
            info,
            self.arena,
            wired(self.transport),
            self.ring,
            sources,
            pool,
            config,
            clock=lambda: self._now,
        )

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        """Those that it does not have."""
        for key, block in zip(keys, blocks, strict=True):
            ref = self.node.store.begin(key)
            if ref is not None:
                self.arena.write_blocks([ref.block], torch.frombuffer(bytearray(block), dtype=torch.uint8)[None])
                self.node.store.publish([key])

    async def content(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """What a reader finds, up to the first key that is not there."""
        reader = Ticket(bytes(16), 1)
        found = []
        for ref in await self.node.lookup(reader, keys):
            if ref is None:
                break
            found.append(self.arena.as_bytes()[ref.block].numpy().tobytes())
        await self.node.close(reader)
        return tuple(found)

    def reuse(self) -> None:
        """Whoever leased anything has lost it, and every slot has another key's bytes."""
        self.let_leases_end()
        other = [bytes([n, 255] * 8) for n in range(NUM_SLOTS)]
        self.put(other, [bytes([99]) * self.arena.block_bytes] * NUM_SLOTS)

    def let_leases_end(self) -> None:
        self._now += self._lease_s
        self.node.store.expire(self._now)

    def check_nothing_is_held(self) -> None:
        self.node.store.check_integrity()
        counts = self.node.store.counts()
        assert (counts.num_leased, counts.num_incomplete) == (0, 0)

    async def stop(self) -> None:
        await self.node.stop()
        await asyncio.to_thread(self.transport.close)
