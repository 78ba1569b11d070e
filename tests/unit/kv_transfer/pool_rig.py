"""One pool node, a worker that offers, and readers, in this process: everything real except the wire and the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import torch

from engine.block_pool import BlockPool
from engine.fake_runner import FakeModel
from engine.kv_cache import KVCache
from kv_transfer.block_offer import BlockOffer, BlockOffers
from kv_transfer.config import TransferConfig
from kv_transfer.local import LocalNetwork, LocalTransport
from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.messages import BlockRef, Compatibility, FailureReason, HandoffError, PeerInfo, Ticket, TransportInfo
from kv_transfer.peer import PeerUnavailable
from kv_transfer.pool_config import PoolConfig
from kv_transfer.pool_disk import DIGEST_BYTES, DiskTier
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_source import SourceDirectory
from kv_transfer.staging import StagingRing
from tests.contract.ends import MakeTransport
from tests.unit.kv_transfer.pair import BLOCK_SIZE, transfer_config

LAYOUT = FakeModel().layout(BLOCK_SIZE)
NUM_CACHED = 12  # blocks that the worker has
WAIT_S = 20.0


def compatibility(**fields: object) -> Compatibility:
    values: dict[str, object] = {
        "protocol_version": 1,
        "model_fingerprint": "fake",
        "kv_dtype": LAYOUT.dtype,
        "block_size": BLOCK_SIZE,
        "num_layers": LAYOUT.num_layers,
        "num_kv_heads": LAYOUT.num_kv_heads,
        "head_dim": LAYOUT.head_dim,
    }
    return Compatibility(**(values | fields))  # type: ignore[arg-type]


def key(n: int) -> bytes:
    return bytes([n]) * 16


def reader(n: int = 0) -> Ticket:
    return Ticket(bytes([n]) * 16, 1)


class OfferingSide:
    """A worker whose prefix cache has `key(n)`, every byte of it n, for each n below NUM_CACHED.

    It keeps silent where a test clears `answers`, and refuses where one sets `is_away`.
    """

    def __init__(self, incarnation: str, make_transport: MakeTransport, **differs: object) -> None:
        self.incarnation = incarnation
        self.cache = KVCache(LAYOUT, NUM_CACHED)
        ring = StagingRing(transfer_config(), LAYOUT.block_bytes, "cpu", lambda reason: None)  # it reads nothing
        self.transport = make_transport(incarnation, self.cache, ring)
        info = TransportInfo(self.transport.name, self.transport.metadata())
        self.info = PeerInfo(incarnation, compatibility(**differs), (info,))
        self.pool = BlockPool(NUM_CACHED)
        self.offers = BlockOffers(self.pool, 30.0, self.transport.keep_awake, max_share=1.0)
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_away = False
        self.num_handshakes = 0
        self.compute()

    def compute(self) -> None:
        """All of its blocks anew."""
        for block, n in zip(self._take_all(), range(NUM_CACHED), strict=True):
            self.cache.as_bytes()[block].fill_(n)
            self.pool.publish(block, key(n))
        self.pool.release(range(NUM_CACHED))

    def forget(self) -> None:
        """Uses all of its blocks for something else."""
        blocks = self._take_all()
        self.cache.as_bytes().fill_(99)
        self.pool.release(blocks)

    def offer(self, *numbers: int) -> BlockOffer:
        offer = self.offers.offer([key(n) for n in numbers], now=0.0)
        assert offer is not None
        return offer

    def source(self, offer: BlockOffer) -> OfferSource:
        return OfferSource(self.incarnation, f"{self.incarnation}:1", offer.ticket)

    async def handshake(self, me: PeerInfo, incarnation: str) -> PeerInfo:
        self.num_handshakes += 1
        await self._answer()
        mismatch = self.info.compatibility.mismatch(me.compatibility)
        if mismatch is not None:
            raise HandoffError(FailureReason.INCOMPATIBLE, mismatch)
        return self.info

    async def commit_offer(self, ticket: Ticket, refs: Sequence[BlockRef]) -> list[bool]:
        await self._answer()
        return self.offers.commit(ticket, refs, now=0.0)

    async def disconnect(self) -> None:
        """There is no connection."""

    def _take_all(self) -> list[int]:
        blocks = self.pool.allocate(NUM_CACHED)
        assert blocks is not None
        return blocks

    async def _answer(self) -> None:
        if self.is_away:
            raise PeerUnavailable(f"{self.incarnation} is away")
        await self.answers.wait()


class ToldTransport(LocalTransport):
    """The node's; notes in `awake` what it is told."""

    def __init__(self, arena: KVCache, network: LocalNetwork, awake: list[bool]) -> None:
        super().__init__("pool", arena, network)
        self._told = awake

    def keep_awake(self, awake: bool) -> None:
        self._told.append(awake)


class PoolRig:
    """Maintains one node of `num_slots` blocks, and any number of workers. Use inside a running loop."""

    def __init__(
        self, num_slots: int = 8, disk: DiskTier | None = None, transfer: TransferConfig | None = None, **fields: object
    ) -> None:
        self.now = 0.0
        self.awake: list[bool] = []
        self.transfer = transfer or transfer_config()
        self.network = LocalNetwork()
        self.workers: dict[str, OfferingSide] = {}
        self.arena = KVCache(LAYOUT, num_slots)
        self.transport = ToldTransport(self.arena, self.network, self.awake)
        self.ring = StagingRing(self.transfer, self.arena.block_bytes, "cpu", lambda reason: None)
        self.info = PeerInfo("pool", compatibility(), (TransportInfo("local", b""),))
        self.sources = SourceDirectory(self.info, self.transport, self.transfer, self._reach)
        config = PoolConfig.model_validate({"ram_bytes": 1, "watermark": 1.0, "disk_timeout_s": WAIT_S} | fields)
        self.node = LocalPoolNode(
            self.info,
            self.arena,
            self.transport,
            self.ring,
            self.sources,
            config,
            self.transfer,
            disk,
            clock=lambda: self.now,
        )

    def worker(self, incarnation: str = "P") -> OfferingSide:
        side = OfferingSide(incarnation, lambda name, cache, ring: LocalTransport(name, cache, self.network))
        self.workers[incarnation] = side
        return side

    async def fill(self, side: OfferingSide, *numbers: int) -> list[bool]:
        """Offers these, and lets go when the node has answered."""
        offer = side.offer(*numbers)
        try:
            return await self.node.offer(side.source(offer), offer.keys, offer.refs)
        finally:
            side.offers.close(offer.ticket, now=0.0)

    async def read(self, *numbers: int) -> list[int | None]:
        """What a reader finds under each key: the number that every byte of its block is, None for a miss."""
        keys = [key(n) for n in numbers]
        refs = await self.node.lookup(reader(), keys)
        content = [self.content(ref) if ref is not None else None for ref in refs]
        found = [(k, ref) for k, ref in zip(keys, refs, strict=True) if ref is not None]
        verdict = await self.node.commit(reader(), [k for k, _ in found], [ref for _, ref in found])
        assert all(verdict)
        return content

    def content(self, ref: BlockRef) -> int:
        values = torch.unique(self.arena.as_bytes()[ref.block])
        assert len(values) == 1, "a block holds parts of two"
        return int(values[0])

    async def check_nothing_is_held(self) -> None:
        """No entry on its way, no slot of staging, no block of any worker, and books that add up."""
        await until(lambda: self.ring.counts().free == self.transfer.staging_slots)
        self.node.store.check_integrity()
        assert self.node.store.counts().num_incomplete == 0
        for side in self.workers.values():
            side.pool.check_integrity()
            assert side.pool.counts().leased == 0

    async def stop(self) -> None:
        await self.node.stop()
        self.transport.resume()
        for transport in (self.transport, *(side.transport for side in self.workers.values())):
            transport.close()

    def _reach(self, address: str) -> OfferingSide:
        return self.workers[address.removesuffix(":1")]


def open_disk(folder: Path, max_blocks: int, kind: type[DiskTier] = DiskTier) -> DiskTier:
    return kind(folder / "pool-0", max_blocks * (LAYOUT.block_bytes + DIGEST_BYTES), LAYOUT.block_bytes)


async def until(condition: Callable[[], bool]) -> None:
    """Waits, one turn of another thread at a time."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.to_thread(_nothing)


def _nothing() -> None:
    """One turn."""


class HangingDisk(DiskTier):
    """A disk that takes what is written and never gives it back."""

    def read(self, key: bytes) -> Future[bytes | None]:
        return Future()
