"""Offers a worker's blocks to the pool: leased while nodes pull them, a few offers at a time, each within a deadline.

What comes of it is a cache: blocks that are evicted before their turn, or that no node takes in time, are not in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

from engine.engine_thread import EngineThread
from engine.errors import EngineStopped
from engine.request import Request
from kv_transfer.block_offer import BlockOffer, BlockOffers
from kv_transfer.config import TransferConfig
from kv_transfer.pool_link import NODE_FAILED, PoolLink
from kv_transfer.pool_messages import OfferSource
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_ring import PoolMember

logger = logging.getLogger(__name__)


class PoolWriter:
    """Maintains the tasks of the offers that run; none of them ends with an error."""

    def __init__(
        self,
        nodes: PoolNodes,
        engine: EngineThread,
        offers: BlockOffers,
        incarnation: str,
        config: TransferConfig,
        clock: Callable[[], float] = monotonic,  # that of the offers
    ) -> None:
        self._address = ""
        self._nodes = nodes
        self._engine = engine
        self._offers = offers
        self._incarnation = incarnation
        self._config = config
        self._clock = clock
        self._turns = asyncio.Semaphore(config.pool_offers_in_flight)
        self._batch = max(1, offers.max_blocks // config.pool_offers_in_flight)
        self._running: set[asyncio.Task[None]] = set()

    def serve_at(self, address: str) -> None:
        """Where this worker's gRPC server is, at which nodes ask for the verdict; nothing may be offered before."""
        self._address = address

    def offer(self, keys: Sequence[bytes], members: Sequence[PoolMember]) -> asyncio.Task[None]:
        """Offers those of the keys that the prefix cache has; done when all nodes have answered, or time is up."""
        return self._start(self._offer(keys, members))

    def write_back(self, request: Request, members: Sequence[PoolMember]) -> asyncio.Task[None]:
        """The same with all full blocks of a request that has ended, or is about to: its generated tokens' too."""
        return self._start(self._write_back(request, members))

    async def settle(self) -> None:
        """Waits for the offers that run, each of which has its deadline."""
        if self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._within_deadline(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _within_deadline(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._config.pool_offer_timeout_s):
                await work
        except TimeoutError:
            logger.info("the pool did not take all that was offered in %g s", self._config.pool_offer_timeout_s)
        except EngineStopped:
            return
        except ExceptionGroup as errors:
            _, faults = errors.split(EngineStopped)
            if faults is not None:
                logger.error("an offer to the pool failed", exc_info=faults)

    async def _write_back(self, request: Request, members: Sequence[PoolMember]) -> None:
        keys = await asyncio.wrap_future(self._engine.call(lambda engine: tuple(request.block_hashes)))
        await self._offer(keys, members)

    async def _offer(self, keys: Sequence[bytes], members: Sequence[PoolMember]) -> None:
        async with asyncio.TaskGroup() as group:
            for first in range(0, len(keys), self._batch):
                group.create_task(self._offer_batch(keys[first : first + self._batch], members))

    async def _offer_batch(self, keys: Sequence[bytes], members: Sequence[PoolMember]) -> None:
        async with self._turns:
            offer = await self._lease(keys)
            if offer is None:
                return
            try:
                async with asyncio.TaskGroup() as group:
                    for link, places in self._nodes.spread(members, offer.keys):
                        group.create_task(self._offer_to(link, offer, places))
            finally:
                self._engine.tell(lambda engine: self._offers.close(offer.ticket, self._clock()))

    async def _lease(self, keys: Sequence[bytes]) -> BlockOffer | None:
        leasing = self._engine.call(lambda engine: self._offers.offer(keys, self._clock()))
        try:
            return await asyncio.wrap_future(leasing)
        except asyncio.CancelledError:
            leasing.add_done_callback(self._close_unseen)  # it may have come too late to be cancelled
            raise

    def _close_unseen(self, leasing: Future[BlockOffer | None]) -> None:
        if not leasing.cancelled() and leasing.exception() is None and (offer := leasing.result()) is not None:
            self._engine.tell(lambda engine: self._offers.close(offer.ticket, self._clock()))

    async def _offer_to(self, link: PoolLink, offer: BlockOffer, places: list[int]) -> None:
        source = OfferSource(self._incarnation, self._address, offer.ticket)
        keys, refs = [offer.keys[place] for place in places], [offer.refs[place] for place in places]
        try:
            async with asyncio.timeout(
                self._config.pool_offer_timeout_s / 2
            ):  # so that who waits learns which node it was
                await link.ask(link.node.offer(source, keys, refs))
        except NODE_FAILED as error:
            link.failed(error)
