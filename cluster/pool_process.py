"""One pool node's process: arena, transport, and the servers through which workers reach it.

No Ray here: `WorkerActor` wraps it, and tests run it as a plain process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from wsgiref.simple_server import WSGIServer

import grpc
from prometheus_client import CollectorRegistry, start_http_server

from cluster.grpc_source import GrpcOfferingWorker
from cluster.membership import Addresses
from cluster.pool_metrics import PoolMetrics
from cluster.pool_node_spec import PoolNodeSpec
from cluster.pool_service import PoolService
from cluster.server_options import SERVER_OPTIONS
from engine.kv_cache import KVCache, KVLayout
from engine.kv_identity import KVIdentity
from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from kv_transfer.nixl import NixlTransport
from kv_transfer.pool_disk import DiskTier
from kv_transfer.pool_source import SourceDirectory
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport
from rpc import pool_pb2_grpc, worker_pb2
from security.address import join_host_port
from security.channel_tls import ChannelTls
from security.cluster_tls import ClusterTls
from security.connection import listen

STOP_GRACE_S = 1.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a node that has started consists of."""

    node: LocalPoolNode
    transport: Transport
    ticking: asyncio.Task[None]
    server: grpc.aio.Server
    metrics_server: WSGIServer


class PoolNodeProcess:
    """Maintains one node, from `start` to `stop`; another start is another incarnation, and empty."""

    def __init__(self, spec: PoolNodeSpec) -> None:
        self.spec = spec
        self._started_at = monotonic()
        self._parts: Parts | None = None
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> Addresses:
        """Raises MemoryError or ValueError for the arena, OSError for a port or the disk tier's folder."""
        spec = self.spec
        loop = asyncio.get_running_loop()

        def fail(reason: str) -> None:
            loop.call_soon_threadsafe(self._fail, reason)

        identity = await asyncio.to_thread(KVIdentity.of, Path(spec.model_dir), spec.engine)
        arena = await asyncio.to_thread(_make_arena, identity.layout, spec.pool.ram_bytes)
        tls = ClusterTls.read(spec.tls)
        node, ring, transport = await asyncio.to_thread(self._build, identity, arena, tls.channel, fail)
        registry = CollectorRegistry()
        labels = {"model_name": spec.model_name, "role": spec.role, "worker": spec.name}
        registry.register(PoolMetrics(node, ring, labels))
        server = grpc.aio.server(options=SERVER_OPTIONS)
        pool_pb2_grpc.add_PoolServicer_to_server(PoolService(node), server)
        port = listen(server, join_host_port(spec.host, 0), tls.server)
        metrics_server, _ = start_http_server(0, addr=spec.host, registry=registry)
        await server.start()
        ticking = asyncio.create_task(node.run(), name="pool-node")
        ticking.add_done_callback(self._ticked_last)
        self._parts = Parts(node, transport, ticking, server, metrics_server)
        logger.info("pool node %s (%s) keeps %d blocks on port %d", spec.name, spec.incarnation, arena.num_blocks, port)
        metrics = join_host_port(spec.host, metrics_server.server_port)
        return Addresses(join_host_port(spec.host, port), metrics, socket.gethostname(), (transport.name,))

    @property
    def uptime_s(self) -> float:
        return monotonic() - self._started_at

    def load(self) -> worker_pb2.Load:
        """Its blocks; it runs no requests."""
        counts = self._started.node.store.counts()
        num_blocks = self._started.node.arena.num_blocks
        num_free = num_blocks - counts.num_objects - counts.num_incomplete
        return worker_pb2.Load(num_blocks=num_blocks, num_free_blocks=num_free, admitting=not self._failed.done())

    async def wait_failed(self) -> str:
        """Why this incarnation cannot go on, once it cannot."""
        return await asyncio.shield(self._failed)

    async def drain(self, timeout_s: float) -> int:
        """Nothing here must be finished: who reads falls back to computing."""
        return 0

    async def stop(self) -> None:
        parts = self._parts
        if parts is None:
            return
        self._parts = None
        parts.ticking.cancel()
        await parts.server.stop(STOP_GRACE_S)
        await parts.node.stop()
        await asyncio.to_thread(parts.transport.close)
        await asyncio.to_thread(parts.metrics_server.shutdown)
        parts.metrics_server.server_close()

    def _build(
        self, identity: KVIdentity, arena: KVCache, tls: ChannelTls | None, on_failed: Callable[[str], None]
    ) -> tuple[LocalPoolNode, StagingRing, Transport]:
        """Takes a moment: NIXL starts."""
        spec, config = self.spec, self.spec.kv_transfer
        disk = self._open_disk(arena.block_bytes)
        ring = StagingRing(config, arena.block_bytes, "cpu", on_exhausted=on_failed)
        transport = NixlTransport(
            spec.incarnation, arena, ring, config.ucx_tls, config.ucx_net_devices, on_failed=on_failed
        )
        info = TransportInfo(transport.name, transport.metadata())
        me = PeerInfo(spec.incarnation, _compatibility(identity, spec), (info,))
        sources = SourceDirectory(me, transport, config, lambda address: GrpcOfferingWorker(address, tls))
        return LocalPoolNode(me, arena, transport, ring, sources, spec.pool, config, disk), ring, transport

    def _open_disk(self, block_bytes: int) -> DiskTier | None:
        pool = self.spec.pool
        if pool.disk_dir is None or pool.disk_bytes == 0:
            return None
        return DiskTier(pool.disk_dir / self.spec.name, pool.disk_bytes, block_bytes)

    def _ticked_last(self, ticking: asyncio.Task[None]) -> None:
        if not ticking.cancelled() and (error := ticking.exception()) is not None:
            self._fail(f"the pool node failed: {type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            logger.error("pool node %s cannot go on: %s", self.spec.name, reason)
            self._failed.set_result(reason)

    @property
    def _started(self) -> Parts:
        if self._parts is None:
            raise RuntimeError(f"{self.spec.name} is not started")
        return self._parts


def _make_arena(layout: KVLayout, ram_bytes: int) -> KVCache:
    num_blocks = ram_bytes // layout.block_bytes
    if num_blocks == 0:
        raise ValueError(f"kv_pool.ram_gib is below the size of one KV block ({layout.block_bytes} bytes): raise it")
    return KVCache(layout, num_blocks)


def _compatibility(identity: KVIdentity, spec: PoolNodeSpec) -> Compatibility:
    """The same as a worker's of the same folder and configuration."""
    layout = identity.layout
    return Compatibility(
        protocol_version=worker_pb2.PROTOCOL_VERSION,
        model_fingerprint=identity.model_fingerprint,
        kv_dtype=layout.dtype,
        block_size=layout.block_size,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        tensor_parallel_size=spec.engine.tensor_parallel_size,
    )
