"""What the pool has of a prompt, read into the blocks of a request that awaits KV: for P and for D alike.

Whatever goes wrong makes the prefix shorter and never fails the request. No block counts before its node has called it
valid after the read, and until then all of them are private to the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.engine import Engine
from engine.engine_thread import EngineThread
from engine.request import Request
from kv_transfer.block_reader import BlockReader, covered_s
from kv_transfer.config import TransferConfig
from kv_transfer.messages import BlockRef, FailureReason, HandoffError, Ticket
from kv_transfer.pool_link import NODE_FAILED, PoolLink, new_ticket
from kv_transfer.pool_nodes import PoolNodes
from kv_transfer.pool_ring import PoolMember
from kv_transfer.staging import StagingRing

logger = logging.getLogger(__name__)
NOT_THE_NODES_FAULT = (FailureReason.STAGING_TIMEOUT, FailureReason.ABORTED, FailureReason.INTERNAL)


@dataclass(frozen=True, slots=True)
class PoolRead:
    """`num_tokens` of the prompt have valid KV now, `num_received` of them from the pool."""

    num_tokens: int
    num_received: int
    num_bytes: int  # of the valid blocks
    transport: str | None  # None: nothing was received
    transfer_s: float  # from the first read to the last byte


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """A request as it was when its blocks were reserved. Made in the engine thread."""

    have_tokens: int  # the worker's own prefix hits
    block_size: int
    blocks: tuple[int, ...]  # of all tokens
    keys: tuple[bytes, ...]  # of the full blocks after `have_tokens` that leave a token to compute
    order: float  # lower goes first, where reads wait for one another; on the monotonic clock

    @classmethod
    def of(cls, request: Request, engine: Engine) -> PoolPlan:
        block_size = engine.config.block_size
        first, last = request.num_computed // block_size, (request.num_tokens - 1) // block_size
        return cls(
            have_tokens=request.num_computed,
            block_size=block_size,
            blocks=tuple(request.blocks),
            keys=tuple(request.block_hashes[first:last]),
            order=engine.scheduler.waiting.order(request),
        )

    def destination(self, places: Sequence[int]) -> tuple[int, ...]:
        """The request's blocks for these keys."""
        first = self.have_tokens // self.block_size
        return tuple(self.blocks[first + place] for place in places)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one node's blocks go: what `BlockReader` asks of a plan."""

    blocks: tuple[int, ...]  # of all tokens
    destination: tuple[int, ...]
    order: float


@dataclass(slots=True, eq=False)
class Share:
    """What one node keeps of a prompt: what was found there and where it is."""

    link: PoolLink
    places: list[int]  # in the prompt's keys
    ticket: Ticket = field(default_factory=new_ticket)
    refs: dict[int, BlockRef] = field(default_factory=dict)  # by place
    leased: bool = False  # as far as is known here
    reader: BlockReader | None = None
    transport: str | None = None


class PoolReader:
    """Maintains nothing but the links' state, which all its reads share."""

    def __init__(self, nodes: PoolNodes, engine: EngineThread, ring: StagingRing, config: TransferConfig) -> None:
        self._nodes = nodes
        self._engine = engine
        self._ring = ring
        self._config = config

    async def read(self, request: Request, members: Sequence[PoolMember]) -> PoolRead:
        """Fills blocks of a RECEIVING request. Afterwards `Engine.accept_prefix` may take them over; EngineStopped."""
        plan = await asyncio.wrap_future(self._engine.call(lambda engine: PoolPlan.of(request, engine)))
        shares = [Share(link, places) for link, places in self._nodes.spread(members, plan.keys)]
        try:
            return await self._read_shares(request, plan, shares)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for share in shares:
                if share.leased:
                    share.link.close_read(share.ticket)

    async def _read_shares(self, request: Request, plan: PoolPlan, shares: list[Share]) -> PoolRead:
        async with asyncio.TaskGroup() as group:
            for share in shares:
                group.create_task(self._look_up(share, plan))
        found = _run({place for share in shares for place in share.refs})
        wanted = [(share, [place for place in share.refs if place < found]) for share in shares]
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(self._take(s, request, plan, places)) for s, places in wanted if places]
        return self._result(plan, _run({place for read in reads for place in read.result()}), shares)

    async def _look_up(self, share: Share, plan: PoolPlan) -> None:
        """Within `pool_lookup_timeout_s`, the connection included; a node that fails has nothing."""
        share.leased = True  # from here on it may be so
        try:
            async with asyncio.timeout(self._config.pool_lookup_timeout_s):
                share.transport = (await share.link.connect()).name
                refs = await share.link.node.lookup(share.ticket, [plan.keys[place] for place in share.places])
        except NODE_FAILED as error:
            share.link.failed(error)
            share.leased = False
            return
        share.refs = {place: ref for place, ref in zip(share.places, refs, strict=True) if ref is not None}
        share.leased = bool(share.refs)

    async def _take(self, share: Share, request: Request, plan: PoolPlan, places: list[int]) -> list[int]:
        """The places whose blocks are in the request's own and were called valid."""
        link = share.link
        try:
            async with asyncio.timeout(self._config.pool_read_timeout_s):
                await link.reading.acquire()
        except TimeoutError:
            return []  # others read there for long: computing is sooner
        try:
            return await self._read_and_commit(share, request, plan, places) if link.is_usable() else []
        except NODE_FAILED as error:
            if not (isinstance(error, HandoffError) and error.reason in NOT_THE_NODES_FAULT):
                link.failed(error)
            return []
        finally:
            link.reading.release()

    async def _read_and_commit(self, share: Share, request: Request, plan: PoolPlan, places: list[int]) -> list[int]:
        refs, keys = [share.refs[place] for place in places], [plan.keys[place] for place in places]
        num_bytes = len(refs) * self._ring.block_bytes
        async with asyncio.timeout(max(self._config.pool_read_timeout_s, num_bytes / self._config.min_bytes_per_s)):
            destination = Destination(plan.blocks, plan.destination(places), plan.order)
            await share.link.ask(self._read(share, request, destination, refs))
        async with asyncio.timeout(self._config.pool_lookup_timeout_s):
            valid = await share.link.node.commit(share.ticket, keys, refs)
        share.leased = False
        if not all(valid):
            share.link.on_failed(FailureReason.STALE)
        return [place for place, is_valid in zip(places, valid, strict=True) if is_valid]

    async def _read(self, share: Share, request: Request, plan: Destination, refs: list[BlockRef]) -> None:
        """Raises the first failure, once nothing of this read goes on by itself."""
        transport, peer = await share.link.connect(), share.link.member.incarnation
        share.reader = BlockReader(request, plan, peer, transport, self._engine, self._ring, self._config)
        try:
            async with asyncio.TaskGroup() as group:
                share.reader.start(group, refs)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _result(self, plan: PoolPlan, num_valid: int, shares: list[Share]) -> PoolRead:
        num_received = num_valid * plan.block_size
        spans = [span for share in shares if share.reader is not None for span in share.reader.spans]
        return PoolRead(
            num_tokens=plan.have_tokens + num_received,
            num_received=num_received,
            num_bytes=num_valid * self._ring.block_bytes,
            transport=next((share.transport for share in shares if share.reader), None) if num_valid else None,
            transfer_s=covered_s(spans),
        )


def _run(places: set[int]) -> int:
    """How many there are from 0 on without a gap."""
    length = 0
    while length in places:
        length += 1
    return length
