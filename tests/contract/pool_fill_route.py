"""From a worker to a pool node: blocks are offered under a lease, pulled by the node, and judged by the worker."""

from __future__ import annotations

import asyncio
import itertools

from torch import Tensor

from kv_transfer.config import TransferConfig
from kv_transfer.transport import Transport
from tests.contract.pool_end import PoolEnd
from tests.contract.route import NUM_BLOCKS, Medium, Taken
from tests.contract.wire import Moment, Wire, WiredTransport, WiredWorker
from tests.unit.kv_transfer.pool_rig import LAYOUT, OfferingSide, compatibility, key, until

NUMBERS = range(1, NUM_BLOCKS + 1)  # of the blocks, and what each byte of theirs is
KEYS = [key(n) for n in NUMBERS]


class PoolFillRoute:
    def __init__(self, medium: Medium, config: TransferConfig, differs: dict[str, object]) -> None:
        self.wire = Wire()
        self.expected = tuple(bytes([n]) * LAYOUT.block_bytes for n in NUMBERS)
        self._medium = medium
        self._differs = differs
        self._incarnations = itertools.count()
        self._source = self._start_worker()
        self._node = PoolEnd("pool-0", LAYOUT, compatibility(), config, medium.make, self._reach, self._wired)

    async def take(self) -> Taken:
        source = self._source
        source.compute()
        offer = source.offer(*NUMBERS)
        offering = [
            self._node.node.offer(source.source(offer), offer.keys, offer.refs)
            for _ in range(2 if Moment.OPEN in self.wire.repeats else 1)
        ]
        try:
            await asyncio.gather(*offering)
            return Taken(await self._node.content(KEYS))
        finally:
            source.offers.close(offer.ticket, now=0.0)

    def memory(self) -> Tensor:
        return self._node.arena.tensor

    async def stop_source(self) -> None:
        self.wire.stop()
        self._medium.stop(self._source.transport, self._node.transport)

    async def resume_source(self) -> None:
        self._medium.go_on(self._source.transport, self._node.transport)
        self.wire.go_on()

    async def kill_source(self) -> None:
        self.wire.is_gone = True
        await asyncio.to_thread(self._source.transport.close)

    async def replace_source(self) -> None:
        self._source = self._start_worker()
        self.wire.is_gone = False

    async def reuse_blocks(self) -> None:
        self._source.offers.advance(now=1e6)
        self._source.forget()

    async def let_leases_end(self) -> None:
        self._node.let_leases_end()
        self._source.offers.advance(now=1e6)

    async def give_up(self) -> None:
        """Late bytes come first, as `PoolReadRoute` says of nodes."""
        await until(lambda: self._node.ring.counts().free == len(self._node.ring.memory))
        await self.let_leases_end()

    async def check_nothing_is_held(self) -> None:
        await until(lambda: self._node.ring.counts().free == len(self._node.ring.memory))
        self._node.check_nothing_is_held()
        self._source.pool.check_integrity()
        assert self._source.pool.counts().leased == 0

    async def close(self) -> None:
        self._medium.go_on(self._source.transport, self._node.transport)
        await self._node.stop()
        await asyncio.to_thread(self._source.transport.close)

    def _start_worker(self) -> OfferingSide:
        return OfferingSide(f"P{next(self._incarnations)}", self._medium.make, **self._differs)

    def _reach(self, address: str) -> WiredWorker:
        return WiredWorker(self._source, self.wire)

    def _wired(self, transport: Transport) -> Transport:
        return WiredTransport(transport, self.wire)
