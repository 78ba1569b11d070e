"""A pool node as far as its readers go: an arena that is told which keys it has, behind the real gRPC service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import grpc

from cluster.pool_service import PoolService
from engine.config import EngineConfig
from engine.kv_cache import KVCache
from engine.kv_identity import KVIdentity
from kv_transfer.config import TransferConfig
from kv_transfer.local_pool_node import LocalPoolNode
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from kv_transfer.nixl import NixlTransport
from kv_transfer.pool_config import PoolConfig
from kv_transfer.pool_ring import PoolMember
from kv_transfer.pool_source import SourceDirectory
from kv_transfer.staging import StagingRing
from rpc import pool_pb2_grpc
from rpc.worker_pb2 import PROTOCOL_VERSION

HOST = "127.0.0.1"


class PoolShelf:
    """Maintains one node; nobody offers to it."""

    def __init__(self, incarnation: str, identity: KVIdentity, num_blocks: int, config: TransferConfig) -> None:
        layout = identity.layout
        arena = KVCache(layout, num_blocks)
        arena.as_bytes().fill_(1)
        ring = StagingRing(config, layout.block_bytes, "cpu", print)
        self._transport = NixlTransport(incarnation, arena, ring)
        info = PeerInfo(
            incarnation,
            Compatibility(
                PROTOCOL_VERSION, identity.model_fingerprint, layout.dtype, layout.block_size, layout.num_layers,
                layout.num_kv_heads, layout.head_dim,
            ),
            (TransportInfo(self._transport.name, self._transport.metadata()),),
        )  # fmt: skip
        sources = SourceDirectory(info, self._transport, config, _nobody)
        budget = PoolConfig(ram_bytes=num_blocks * layout.block_bytes, watermark=1.0)
        self._node = LocalPoolNode(info, arena, self._transport, ring, sources, budget, config)
        self._server = grpc.aio.server()
        pool_pb2_grpc.add_PoolServicer_to_server(PoolService(self._node), self._server)
        port = self._server.add_insecure_port(f"{HOST}:0")
        self._member = PoolMember("pool-0", incarnation, f"{HOST}:{port}")

    @classmethod
    async def start(cls, incarnation: str, folder: Path, engine: EngineConfig, config: TransferConfig) -> PoolShelf:
        shelf = cls(incarnation, KVIdentity.of(folder, engine), engine.num_blocks, config)
        await shelf._server.start()
        return shelf

    def member(self) -> PoolMember:
        return self._member

    def fill(self, keys: Sequence[bytes]) -> None:
        """From now on these are found; what their blocks hold does not matter."""
        new = [key for key in keys if self._node.store.begin(key) is not None]
        self._node.store.publish(new)

    async def close(self) -> None:
        await self._node.stop()
        self._transport.close()
        await self._server.stop(None)


def _nobody(address: str) -> NoReturn:
    raise AssertionError(f"nobody offers, but {address} was asked for")
