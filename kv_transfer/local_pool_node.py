"""A pool node's logic: what its gRPC service answers from, and a whole node for tests.

Lives on one event loop; the store decides, the puller fills, the disk tier keeps what the arena gives up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

import torch

from engine.kv_cache import KVCache
from kv_transfer.config import TransferConfig
from kv_transfer.introduction import admit
from kv_transfer.messages import BlockRef, HandoffError, PeerInfo, Ticket
from kv_transfer.peer import PeerUnavailable
from kv_transfer.pool_config import PoolConfig
from kv_transfer.pool_disk import DiskTier
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_pull import BlockPuller
from kv_transfer.pool_source import SourceDirectory
from kv_transfer.pool_store import PoolStore
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport

logger = logging.getLogger(__name__)

TICK_S = 1.0  # so late, at most, a lease that has run out is ended


class LocalPoolNode:
    """A `PoolNode`. Maintains: the transport is awake while a reader, or one that gave up, may be reading."""

    def __init__(
        self,
        info: PeerInfo,
        arena: KVCache,
        transport: Transport,
        ring: StagingRing,
        sources: SourceDirectory,
        config: PoolConfig,
        transfer: TransferConfig,
        disk: DiskTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = PoolStore(arena.num_blocks, config.watermark, transfer.lease_s, self._spill)
        self.arena = arena
        self.disk = disk
        self.num_failed_offers = 0
        self.num_read = 0  # blocks that a reader took and that were called valid then
        self._info = info
        self._transport = transport
        self._sources = sources
        self._config = config
        self._transfer = transfer
        self._clock = clock
        self._puller = BlockPuller(self.store, arena, transport, ring, transfer)
        self._pulling = asyncio.Semaphore(config.max_pulls)
        self._num_offers = 0
        self._restoring: dict[bytes, asyncio.Task[None]] = {}
        self._awake = False
        self._awake_until = -math.inf

    @property
    def num_pulled(self) -> int:
        """Blocks that came from workers, as `num_read` since the start."""
        return self._puller.num_pulled

    @property
    def transport_name(self) -> str:
        return self._transport.name

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        return admit(self._info, me, incarnation)

    async def lookup(self, reader: Ticket, keys: Sequence[bytes]) -> list[BlockRef | None]:
        if self.disk is not None:
            await self._restore(self.disk, keys)
        refs = self.store.lookup(reader, keys, self._clock())
        self._update_awake()
        return refs

    async def commit(self, reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        verdict = self.store.commit(reader, keys, refs, self._clock())
        self.num_read += sum(verdict)
        if not all(verdict):
            self._stay_awake()
        self._update_awake()
        return verdict

    async def close(self, reader: Ticket) -> None:
        if self.store.close(reader):
            self._stay_awake()
        self._update_awake()

    async def offer(self, source: OfferSource, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        wanted = [(key, ref) for key, ref in zip(keys, refs, strict=True) if not self.store.holds(key)]
        if wanted and self._num_offers < self._config.max_offers:
            self._num_offers += 1
            try:
                async with asyncio.timeout(self._config.offer_timeout_s), self._pulling:
                    await self._pull(source, wanted)
            except (HandoffError, PeerUnavailable, TimeoutError) as error:
                self.num_failed_offers += 1
                logger.info("an offer of %s failed: %s", source.incarnation, error or "no time left")
            finally:
                self._num_offers -= 1
        return [self.store.holds(key) for key in keys]

    async def disconnect(self) -> None:
        """There is no connection."""

    async def run(self) -> None:
        """Until cancelled: ends what runs out."""
        while True:
            await asyncio.sleep(TICK_S)
            if self.store.expire(self._clock()):
                self._stay_awake()
            self._update_awake()
            await self._sources.forget_idle()

    async def stop(self) -> None:
        """Lets go of sources and disk; the transport belongs to who made it."""
        for task in list(self._restoring.values()):
            task.cancel()
        await self._sources.close()
        if self.disk is not None:
            await asyncio.to_thread(self.disk.close)

    async def _pull(self, source: OfferSource, wanted: Sequence[tuple[bytes, BlockRef]]) -> None:
        async with self._sources.connected(source) as worker:
            await self._puller.pull(worker, source.ticket, wanted)

    async def _restore(self, disk: DiskTier, keys: Sequence[bytes]) -> None:
        """Back into the arena what only the disk has, unless that takes too long: then it is a miss."""
        loop = asyncio.get_running_loop()
        for key in keys:
            if not self.store.holds(key) and key not in self._restoring and disk.has(key):
                self._restoring[key] = loop.create_task(self._restore_one(disk, key))
        waited_for = [self._restoring[key] for key in keys if key in self._restoring]
        if waited_for:
            await asyncio.wait(waited_for, timeout=self._config.disk_timeout_s)

    async def _restore_one(self, disk: DiskTier, key: bytes) -> None:
        try:
            payload = await asyncio.wrap_future(disk.read(key))
            slot = self.store.begin(key) if payload is not None else None
            if payload is not None and slot is not None:
                block = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
                self.arena.write_blocks([slot.block], block.unsqueeze(0))
                self.store.publish([key])
        finally:
            del self._restoring[key]

    def _spill(self, key: bytes, slot: int) -> None:
        if self.disk is not None and not self.disk.has(key) and not self.disk.is_behind:
            self.disk.write(key, self.arena.as_bytes()[slot].numpy().tobytes())

    def _stay_awake(self) -> None:
        """A reader left without a verdict: a read of its may still run."""
        self._awake_until = self._clock() + self._transfer.lease_s

    def _update_awake(self) -> None:
        awake = self.store.has_leases or self._clock() < self._awake_until
        if awake != self._awake:
            self._awake = awake
            self._transport.keep_awake(awake)
