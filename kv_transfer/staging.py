"""The staging ring: the only memory that a peer's bytes land in, a bounded set of registered slots.

A slot whose read is in doubt is quarantined until the read has ended, so a late one can only scribble on that slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.completion import when_ended
from kv_transfer.config import TransferConfig
from kv_transfer.messages import FailureReason, HandoffError

MAX_BLOCKS_PER_READ = 256  # each is a descriptor, which transports prepare for every place in every slot


@dataclass(frozen=True, slots=True)
class Slot:
    index: int
    memory: Tensor  # uint8 [staging_slot_bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    order: float
    slot: asyncio.Future[Slot]


@dataclass(frozen=True, slots=True)
class SlotCounts:
    free: int
    busy: int
    quarantined: int


class StagingRing:
    """Maintains: each slot is free, busy or quarantined, and none is free while somebody waits for one.

    Belongs to one event loop, except for `counts`.

    `on_exhausted` is called once, with a reason, when more than `max_quarantined_slots` are in doubt: the worker must
    drain and restart, which is the only way to get such a slot back.
    """

    def __init__(
        self, config: TransferConfig, block_bytes: int, device: str, on_exhausted: Callable[[str], None]
    ) -> None:
        if block_bytes > config.staging_slot_bytes:
            raise ValueError(
                f"staging_slot_bytes ({config.staging_slot_bytes}) is below the size of one KV block ({block_bytes}): "
                "raise it, or lower block_size"
            )
        self.memory = torch.zeros((config.staging_slots, config.staging_slot_bytes), dtype=torch.uint8, device=device)
        self.block_bytes = block_bytes
        self._max_quarantined = config.max_quarantined_slots
        self._on_exhausted = on_exhausted
        self._exhausted = False
        self._free = deque(Slot(index, self.memory[index]) for index in range(config.staging_slots))
        self._waiting: list[Waiter] = []
        self._quarantined: set[int] = set()

    @property
    def blocks_per_slot(self) -> int:
        return self.blocks_in_slot(WHOLE)

    def blocks_in_slot(self, part: BlockPart) -> int:
        """Of how many blocks that part fits into one slot."""
        return pieces_in_row(self.memory.shape[1], part.num_bytes(self.block_bytes))

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, timeout_s: float, order: float = 0.0) -> Slot:
        """A free slot: of those who wait the one with the lowest `order` gets it, then the first come.

        Raises HandoffError(STAGING_TIMEOUT).
        """
        if self._free:
            return self._free.popleft()
        waiter = Waiter(order, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter.slot
        except TimeoutError:
            self._leave(waiter)
            counts = self.counts()
            detail = f"no staging slot in {timeout_s:g} s: {counts.busy} busy, {counts.quarantined} quarantined"
            raise HandoffError(FailureReason.STAGING_TIMEOUT, detail) from None
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def release(self, slot: Slot) -> None:
        waiting = [waiter for waiter in self._waiting if not waiter.slot.done()]
        if not waiting:
            self._free.append(slot)
            return
        first = min(waiting, key=lambda waiter: waiter.order)
        self._waiting.remove(first)
        first.slot.set_result(slot)

    def release_after(self, slot: Slot, use: Future[None], in_doubt_after_s: float) -> None:
        """Frees the slot once `use`, which still reads or writes it, has ended. Late, it is in doubt until then."""
        timer = asyncio.get_running_loop().call_later(in_doubt_after_s, self._quarantine, slot)
        when_ended(use, lambda: self._settle(slot, timer))

    def quarantine(self, slot: Slot, use: Future[None]) -> None:
        """The same, in doubt from now on."""
        self._quarantine(slot)
        when_ended(use, lambda: self._settle(slot, None))

    def counts(self) -> SlotCounts:
        free, quarantined = len(self._free), len(self._quarantined)
        return SlotCounts(free=free, busy=len(self.memory) - free - quarantined, quarantined=quarantined)

    def _leave(self, waiter: Waiter) -> None:
        """A slot that it was given in its last moment goes to the next."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif not waiter.slot.cancelled():
            self.release(waiter.slot.result())

    def _quarantine(self, slot: Slot) -> None:
        self._quarantined.add(slot.index)
        if len(self._quarantined) > self._max_quarantined and not self._exhausted:
            self._exhausted = True
            self._on_exhausted(f"{len(self._quarantined)} staging slots are in doubt (max_quarantined_slots)")

    def _settle(self, slot: Slot, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
        self._quarantined.discard(slot.index)
        self.release(slot)


def pieces_in_row(row_bytes: int, piece_bytes: int) -> int:
    return min(row_bytes // piece_bytes, MAX_BLOCKS_PER_READ)
