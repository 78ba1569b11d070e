"""A worker's part in pooled mode, in either role: what it reads from the pool's nodes and what it offers to them."""

from __future__ import annotations

from dataclasses import dataclass

from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_reader import PoolReader
from kv_transfer.pool_writer import PoolWriter


@dataclass(frozen=True, slots=True)
class PoolClient:
    nodes: PoolNodes
    reader: PoolReader
    writer: PoolWriter

    async def close(self) -> None:
        """Nobody may be reading any more; offers that still run are given up."""
        await self.writer.close()
        await self.nodes.close()
