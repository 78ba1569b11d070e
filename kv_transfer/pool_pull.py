"""The way of offered blocks from a worker's cache through the staging ring into a pool node's arena."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.kv_cache import KVCache
from kv_transfer.completion import ended
from kv_transfer.config import TransferConfig
from kv_transfer.messages import BlockRef, FailureReason, HandoffError, Ticket
from kv_transfer.pool_source import Source
from kv_transfer.pool_store import PoolStore
from kv_transfer.staging import Slot, StagingRing
from kv_transfer.transport import Transport


@dataclass(frozen=True, slots=True)
class Move:
    """One key's block: where it is at the source, and its slot in the arena."""

    key: bytes
    source: BlockRef
    slot: int


class BlockPuller:
    """Maintains: a key is published only when its block was read, and the source then called it valid.

    However a pull ends, an unpublished key is abandoned and nothing writes its slot any more: late bytes go to staging.
    """

    def __init__(
        self, store: PoolStore, arena: KVCache, transport: Transport, ring: StagingRing, config: TransferConfig
    ) -> None:
        self._store = store
        self._arena = arena
        self._transport = transport
        self._ring = ring
        self._config = config
        self.num_pulled = 0  # blocks that were published, since the start

    async def pull(self, source: Source, ticket: Ticket, offered: Sequence[tuple[bytes, BlockRef]]) -> None:
        """A slot of staging at a time; what was published before an error stays. Raises HandoffError."""
        for part in _parts(offered, self._ring.blocks_per_slot):
            moves = [Move(key, ref, slot.block) for key, ref in part if (slot := self._store.begin(key)) is not None]
            if not moves:
                continue
            valid: list[bool] = [False] * len(moves)
            try:
                await self._read(source, moves)
                valid = await self._commit(source, ticket, moves)
            finally:
                self._store.publish([move.key for move, is_valid in zip(moves, valid, strict=True) if is_valid])
                self.num_pulled += sum(valid)
                self._store.abandon([move.key for move, is_valid in zip(moves, valid, strict=True) if not is_valid])
            self._store.evict_above_watermark()

    async def _read(self, source: Source, moves: Sequence[Move]) -> None:
        loop = asyncio.get_running_loop()
        slot = await self._ring.acquire(self._config.reserve_timeout_s)
        timeout_s = self._config.read_timeout_s(len(moves) * self._ring.block_bytes)
        in_doubt_at = loop.time() + timeout_s
        read = self._transport.read(source.incarnation, [move.source.block for move in moves], slot)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(in_doubt_at):
                    await ended(read)
        except asyncio.CancelledError:
            self._ring.release_after(slot, read, max(0.0, in_doubt_at - loop.time()))
            raise
        if not read.done():
            self._ring.quarantine(slot, read)
            detail = f"{len(moves)} blocks did not come from {source.incarnation} in {timeout_s:g} s"
            raise HandoffError(FailureReason.TRANSFER_TIMEOUT, detail)
        error = read.exception()
        if error is None:
            self._copy(slot, moves)
        self._ring.release(slot)
        if error is not None:
            raise HandoffError(FailureReason.TRANSFER_FAILED, str(error)) from error

    def _copy(self, slot: Slot, moves: Sequence[Move]) -> None:
        """On the event loop, a few milliseconds at most: so nothing can come between it and what follows."""
        payload = slot.memory[: len(moves) * self._arena.block_bytes].view(len(moves), self._arena.block_bytes)
        self._arena.write_blocks([move.slot for move in moves], payload)

    async def _commit(self, source: Source, ticket: Ticket, moves: Sequence[Move]) -> list[bool]:
        try:
            async with asyncio.timeout(self._config.verdict_timeout_s):
                valid = await source.worker.commit_offer(ticket, [move.source for move in moves])
        except TimeoutError:
            detail = f"{source.incarnation} gave no verdict in {self._config.verdict_timeout_s:g} s"
            raise HandoffError(FailureReason.VERDICT_TIMEOUT, detail) from None
        if len(valid) != len(moves):
            detail = f"{source.incarnation} judged {len(valid)} blocks of {len(moves)}"
            raise HandoffError(FailureReason.MISMATCH, detail)
        return valid


def _parts(offered: Sequence[tuple[bytes, BlockRef]], num_blocks: int) -> Iterator[Sequence[tuple[bytes, BlockRef]]]:
    for i in range(0, len(offered), num_blocks):
        yield offered[i : i + num_blocks]
