"""The data path of one hand-off: a peer's blocks into staging slots, and from there into the request's own blocks.

A few slots are in flight at a time, so one is copied out while the next is read and no prompt takes the whole ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.engine import Engine
from engine.engine_thread import EngineThread
from engine.request import Request, RequestState
from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.completion import ended
from kv_transfer.config import TransferConfig
from kv_transfer.messages import BlockRef, FailureReason, HandoffError
from kv_transfer.read_turns import ReadTurns
from kv_transfer.staging import Slot, StagingRing
from kv_transfer.transport import Transport


@dataclass(frozen=True, slots=True)
class Span:
    """When one slot was being read."""

    started_at: float
    ended_at: float

    def before(self, at: float) -> float:
        return max(0.0, min(self.ended_at, at) - self.started_at)


def covered_s(spans: Sequence[Span]) -> float:
    """From the first start to the last end."""
    return max((s.ended_at for s in spans), default=0.0) - min((s.started_at for s in spans), default=0.0)


class ReadPlan(Protocol):
    """Where the blocks go: a hand-off's plan, or what a pool's reader has of one."""

    @property
    def blocks(self) -> tuple[int, ...]: ...  # of all the request's tokens

    @property
    def destination(self) -> tuple[int, ...]: ...  # those to fill, in order

    @property
    def order(self) -> float: ...  # lower goes first, where reads wait for one another


@dataclass(frozen=True, slots=True)
class Piece:
    """What one slot holds: a part of some of the peer's blocks, and where it goes."""

    sources: tuple[int, ...]
    destination: tuple[int, ...]
    part: BlockPart


def order_near(now: float, order: float, timeout_s: float) -> float:
    """`order`, but so near to now that nobody who comes after half of `timeout_s` goes before who waits since now."""
    return min(max(order, now - timeout_s / 4), now + timeout_s / 4)


class BlockReader:
    """Maintains: a slot is released once nothing reads or writes it any more, however the hand-off ends."""

    def __init__(
        self,
        request: Request,
        plan: ReadPlan,
        peer: str,
        transport: Transport,
        engine: EngineThread,
        ring: StagingRing,
        config: TransferConfig,
        turns: ReadTurns | None = None,
    ) -> None:
        self._request = request
        self._plan = plan
        self._peer = peer
        self._transport = transport
        self._engine = engine
        self._ring = ring
        self._config = config
        self._in_flight = asyncio.Semaphore(config.reads_in_flight)
        self._turns = turns or ReadTurns(config)  # shared by all who read from the peer
        self._tasks: list[asyncio.Task[None]] = []
        self.num_bytes = 0  # in place
        self.spans: list[Span] = []
        self.in_doubt: list[Future[None]] = []  # reads that went on when nobody waited any more

    def start(
        self, group: asyncio.TaskGroup, blocks: Sequence[BlockRef], first: int = 0, part: BlockPart = WHOLE
    ) -> None:
        """Reads that part of these blocks, in tasks of `group`, to the plan's destination from its `first` one on."""
        size = self._ring.blocks_in_slot(part)
        for i in range(0, len(blocks), size):
            sources = tuple(ref.block for ref in blocks[i : i + size])
            destination = self._plan.destination[first + i : first + i + len(sources)]
            self._tasks.append(group.create_task(self._move(Piece(sources, destination, part))))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def transfer_s(self) -> float:
        """From the first read to the last byte."""
        return covered_s(self.spans)

    def overlap_ratio(self, done_at: float) -> float | None:
        total = sum(span.before(span.ended_at) for span in self.spans)
        return sum(span.before(done_at) for span in self.spans) / total if total else None

    def _num_bytes(self, piece: Piece) -> int:
        return len(piece.sources) * piece.part.num_bytes(self._ring.block_bytes)

    def _order(self, timeout_s: float) -> float:
        return order_near(asyncio.get_running_loop().time(), self._plan.order, timeout_s)

    async def _move(self, piece: Piece) -> None:
        async with self._in_flight:
            slot = await self._take_slot()
            await self._read(piece, slot)
            await self._copy(piece, slot)
            self.num_bytes += self._num_bytes(piece)

    async def _take_slot(self) -> Slot:
        timeout_s = self._config.reserve_timeout_s
        await self._turns.take(self._order(timeout_s))
        try:
            return await self._ring.acquire(timeout_s, self._order(timeout_s))
        except BaseException:
            self._turns.give_back()
            raise

    async def _read(self, piece: Piece, slot: Slot) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        timeout_s = self._config.read_timeout_s(self._num_bytes(piece))
        read = self._transport.read(self._peer, piece.sources, slot, self._order(timeout_s), piece.part)
        self._turns.give_back_after(read)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await ended(read)
        except asyncio.CancelledError:
            self._ring.release_after(slot, read, timeout_s - (loop.time() - started_at))
            self.in_doubt.append(read)
            raise
        if not read.done():
            self._ring.quarantine(slot, read)
            self.in_doubt.append(read)
            detail = f"{len(piece.sources)} blocks did not come from {self._peer} in {timeout_s:g} s"
            raise HandoffError(FailureReason.TRANSFER_TIMEOUT, detail)
        error = read.exception()
        if error is not None:
            self._ring.release(slot)
            raise HandoffError(FailureReason.TRANSFER_FAILED, str(error)) from error
        self.spans.append(Span(started_at, loop.time()))

    async def _copy(self, piece: Piece, slot: Slot) -> None:
        """In the engine thread, which alone may write KV blocks; the request's deadline bounds the wait for it."""
        copy: Future[None] = self._engine.call(lambda engine: self._write(engine, piece, slot))
        try:
            await ended(copy)
            copy.result()
        finally:
            if copy.done() or copy.cancel():
                self._ring.release(slot)
            else:
                self._ring.release_after(slot, copy, self._config.transfer_timeout_s)

    def _write(self, engine: Engine, piece: Piece, slot: Slot) -> None:
        request = engine.requests.get(self._request.request_id)
        receives = request is self._request and request.state is RequestState.RECEIVING
        if not receives or tuple(self._request.blocks) != self._plan.blocks:
            raise HandoffError(FailureReason.ABORTED, "the request no longer waits for KV")
        payload = slot.memory[: self._num_bytes(piece)].view(len(piece.destination), -1)
        engine.cache.write_blocks(piece.destination, payload, piece.part.start)
        if payload.is_cuda:
            torch.cuda.current_stream(payload.device).synchronize()  # the slot is free when this returns
