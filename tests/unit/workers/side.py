"""What either worker in this process has: an engine thread, leases, a transport that copies, and staging."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.engine_thread import EngineThread
from engine.fake_runner import FakeModel, FakeRunner
from engine.kv_cache import KVCache
from kv_transfer.config import TransferConfig
from kv_transfer.lease import LeaseTable
from kv_transfer.local import LocalNetwork, LocalTransport
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from kv_transfer.staging import StagingRing


@dataclass
class Side:
    """What both workers have."""

    engine: EngineThread
    leases: LeaseTable
    transport: LocalTransport
    ring: StagingRing
    info: PeerInfo
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    @classmethod
    def make(
        cls,
        incarnation: str,
        network: LocalNetwork,
        config: EngineConfig,
        transfers: TransferConfig,
        model_dir: Path | None,
    ) -> Side:
        engine = fake_engine(config) if model_dir is None else build_engine(model_dir, config)
        thread = EngineThread(engine, tick_s=0.02)
        cache = engine.cache
        transport = LocalTransport(incarnation, cache, network)
        layout = cache.layout
        compatibility = Compatibility(
            1,
            engine.model.fingerprint,
            layout.dtype,
            layout.block_size,
            layout.num_layers,
            layout.num_kv_heads,
            layout.head_dim,
        )
        info = PeerInfo(incarnation, compatibility, (TransportInfo("local", transport.metadata()),))
        ring = StagingRing(transfers, cache.block_bytes, "cpu", on_exhausted=lambda reason: None)
        leases = LeaseTable(thread.engine, transfers, on_awake=transport.keep_awake)
        return cls(thread, leases, transport, ring, info)

    async def check_idle(self) -> None:
        """No block in use, no lease, no slot busy, all books right; within a deadline, by timers alone."""

        def idle(engine: Engine) -> bool:
            engine.check_integrity()
            counts = engine.pool.counts()
            return counts.used == counts.leased == 0 and not engine.requests

        async with asyncio.timeout(10):
            while not await asyncio.wrap_future(self.engine.call(idle)) or self.ring.counts().busy:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def fake_engine(config: EngineConfig) -> Engine:
    model = FakeModel()
    cache = KVCache(model.layout(config.block_size), config.num_blocks)
    return Engine(config, model.info(), FakeRunner(cache, model), cache)
