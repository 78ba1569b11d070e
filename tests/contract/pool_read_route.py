"""From a pool node to a worker: a prompt's blocks are looked up, read into a request's own, and judged by the node."""

from __future__ import annotations

import itertools
from dataclasses import replace

from torch import Tensor

from engine.request import RequestKind
from kv_transfer.config import TransferConfig
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_reader import PoolReader
from kv_transfer.pool_ring import PoolMember
from kv_transfer.pool_source import OfferingWorker
from tests.contract.pool_end import PoolEnd
from tests.contract.route import PROMPT, Medium, Taken, computed, rows
from tests.contract.wire import Wire, WiredNode, WiredTransport
from tests.unit.kv_transfer.pair import BLOCK_SIZE, Side, make_engine, make_request, until


class PoolReadRoute:
    def __init__(self, medium: Medium, config: TransferConfig, differs: dict[str, object]) -> None:
        self.wire = Wire()
        self._computed = computed()
        self.expected = self._computed.blocks
        self._medium = medium
        self._config = config
        self._differs = differs
        self._numbers = itertools.count()
        self._taker = Side.make("D", make_engine(), config, medium.make)
        self._node = self._start_node()
        transports = {self._taker.transport.name: WiredTransport(self._taker.transport, self.wire)}
        self._nodes = PoolNodes(self._taker.info, self._open, transports, config)
        self._reader = PoolReader(self._nodes, self._taker.thread, self._taker.ring, config)
        self._taker.thread.start()

    async def take(self) -> Taken:
        self._node.put(self._computed.keys, self._computed.blocks)
        request = make_request(f"d{next(self._numbers)}", PROMPT, RequestKind.GENERATE, awaits_kv=True)
        await self._taker.reserve(request)
        try:
            read = await self._reader.read(request, [self._member])
            return Taken(rows(self._taker.engine.cache, request.blocks[: read.num_received // BLOCK_SIZE]))
        finally:
            await self._taker.call(lambda engine: engine.abort(request.request_id))

    def memory(self) -> Tensor:
        return self._taker.engine.cache.tensor

    async def stop_source(self) -> None:
        self.wire.stop()
        self._medium.stop(self._node.transport, self._taker.transport)

    async def resume_source(self) -> None:
        self._medium.go_on(self._node.transport, self._taker.transport)
        self.wire.go_on()

    async def kill_source(self) -> None:
        self.wire.is_gone = True
        await self._node.stop()

    async def replace_source(self) -> None:
        self._node = self._start_node()
        self.wire.is_gone = False

    async def reuse_blocks(self) -> None:
        self._node.reuse()

    async def let_leases_end(self) -> None:
        self._node.let_leases_end()

    async def give_up(self) -> None:
        """Late bytes come first: a node takes part in reads for as long as a lease after one that ended in doubt."""
        ring = self._taker.ring
        await until(lambda: ring.counts().free == len(ring.memory), self._taker)
        await self.let_leases_end()

    async def check_nothing_is_held(self) -> None:
        await until(lambda: not self._node.node.store.has_leases, self._taker)
        self._node.check_nothing_is_held()
        await self._taker.check_nothing_is_held()

    async def close(self) -> None:
        self._medium.go_on(self._node.transport, self._taker.transport)
        await self._nodes.close()
        await self._taker.stop()
        await self._node.stop()

    @property
    def _member(self) -> PoolMember:
        return PoolMember("pool-0", self._node.incarnation, self._node.incarnation)

    def _start_node(self) -> PoolEnd:
        layout = self._taker.engine.cache.layout
        info = replace(self._taker.info.compatibility, **self._differs)  # type: ignore[arg-type]
        return PoolEnd(f"pool-0-{next(self._numbers)}", layout, info, self._config, self._medium.make, _nobody)

    def _open(self, member: PoolMember) -> WiredNode:
        return WiredNode(self._node.node, self.wire)


def _nobody(address: str) -> OfferingWorker:
    raise AssertionError("nobody offers here")
