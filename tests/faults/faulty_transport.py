"""A transport whose reads copy in the event loop's time, and may fail, tear, end long after, or never.

As with the real ones, a read sees whatever the source's blocks hold when it happens, and writes its slot even when
nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from engine.kv_cache import KVCache
from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.signalling import Signalling
from kv_transfer.staging import Slot
from kv_transfer.transport import TransferFailed
from tests.faults.fault import Fault, Faults, Message

READ_S = 0.002


@dataclass(frozen=True, slots=True)
class Piece:
    """One block's part of a read: the peer's `block`, the `index`th in the slot."""

    peer: str
    index: int
    block: int
    slot: Slot
    part: BlockPart


class FaultyTransport:
    """Maintains `num_lost`, the reads that never end. `find` gives a living peer's cache, and None for a dead one."""

    name = "faulty"

    def __init__(
        self,
        incarnation: str,
        faults: Faults,
        find: Callable[[str], KVCache | None],
        strike: Callable[[str, Fault | None, bool], None],
        message: Message = Message.READ,
        stopped_s: Callable[[str], float] = lambda peer: 0.0,
    ) -> None:
        self._incarnation = incarnation
        self._faults = faults
        self._find = find
        self._strike = strike  # at a peer, before (False) or after it; this side's death comes through it too
        self._message = message  # what its reads count as
        self._stopped_s = stopped_s  # how long this peer, or this side, still does nothing
        self._closed = False
        self.num_lost = 0

    def metadata(self) -> bytes:
        return b""

    def connect(self, peer: str, metadata: bytes, signalling: Signalling | None = None) -> Future[None]:
        connected: Future[None] = Future()
        draw = self._faults.draw(Message.CONNECT, f"{self._incarnation} {peer}")
        if draw.fault is not Fault.LOST:
            delay_s = draw.delay_s if draw.fault is Fault.LATE else READ_S
            refused = draw.fault is Fault.REFUSED
            asyncio.get_running_loop().call_later(delay_s, self._connect, peer, connected, refused)
        return connected

    def read(
        self, peer: str, blocks: Sequence[int], slot: Slot, order: float = 0.0, part: BlockPart = WHOLE
    ) -> Future[None]:
        read: Future[None] = Future()
        read.set_running_or_notify_cancel()
        loop = asyncio.get_running_loop()
        draw = self._faults.draw(self._message, self._incarnation)
        self._strike(peer, draw.fault, False)
        if draw.fault is Fault.LOST:
            self.num_lost += 1
            return read
        pieces = [Piece(peer, i, block, slot, part) for i, block in enumerate(blocks)]
        half = len(pieces) // 2 if draw.fault is Fault.TORN else 0
        delay_s = READ_S + (draw.delay_s if draw.fault in (Fault.LATE, Fault.TORN) else 0.0)
        if half:
            loop.call_later(READ_S, self._copy, pieces[:half])
        loop.call_later(delay_s, self._end, pieces[half:], read, draw.fault)
        return read

    def forget(self, peer: str) -> None:
        """Nothing is kept."""

    def keep_awake(self, awake: bool) -> None:
        """A copy needs nobody else's help."""

    def close(self, timeout_s: float = 5.0) -> None:
        self._closed = True

    def die(self, silently: bool) -> None:
        """Whoever reads from it finds nothing, in either case."""
        self._closed = True

    async def end(self) -> None:
        self._closed = True

    def _connect(self, peer: str, connected: Future[None], refused: bool) -> None:
        if not connected.set_running_or_notify_cancel():
            return
        if refused or self._find(peer) is None:
            connected.set_exception(TransferFailed(f"no connection to {peer}"))
        else:
            connected.set_result(None)

    def _end(self, pieces: Sequence[Piece], read: Future[None], fault: Fault | None) -> None:
        if self._closed:
            return  # its memory is no more
        peer = pieces[0].peer
        stopped_s = self._stopped_s(peer)
        if stopped_s:
            asyncio.get_running_loop().call_later(stopped_s + READ_S, self._end, pieces, read, fault)
            return
        if fault is Fault.REFUSED:
            read.set_exception(TransferFailed("the link broke"))
        elif not self._copy(pieces):
            read.set_exception(TransferFailed(f"{peer} is gone"))
        else:
            read.set_result(None)
        self._strike(peer, fault, True)

    def _copy(self, pieces: Sequence[Piece]) -> bool:
        cache = None if self._closed else self._find(pieces[0].peer)
        if cache is None:
            return False
        source = cache.as_bytes()
        for piece in pieces:
            wanted = piece.part.within(cache.block_bytes)
            start = piece.index * len(wanted)
            part = source[piece.block][wanted.start : wanted.stop]
            piece.slot.memory[start : start + len(wanted)].copy_(part)
        return True
