"""The transport within one process: a copy from the peer's cache, which a test can make fail, stall or run late.

It answers as a remote one does, from another thread, and a stalled read still writes its slot when it is let go.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from engine.kv_cache import KVCache
from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.signalling import Signalling
from kv_transfer.staging import Slot
from kv_transfer.transport import TransferFailed


@dataclass(slots=True)
class LocalNetwork:
    """The caches of the workers in this process, by incarnation."""

    caches: dict[str, KVCache] = field(default_factory=dict)


class LocalTransport:
    """Maintains its worker's entry in the network; one thread of its own does the copying."""

    name = "local"

    def __init__(self, incarnation: str, cache: KVCache, network: LocalNetwork) -> None:
        self._incarnation = incarnation
        self._network = network
        self._connected: set[str] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-transport")
        self._faults: deque[str | None] = deque()
        self._closed = False
        self._stalling = False
        self._stalled: deque[tuple[float, Callable[[], None]]] = deque()
        self._waiting: list[tuple[float, Callable[[], None]]] = []  # for the thread
        self._lock = threading.Lock()
        self.num_reads = 0
        network.caches[incarnation] = cache

    def metadata(self) -> bytes:
        return b""

    def connect(self, peer: str, metadata: bytes, signalling: Signalling | None = None) -> Future[None]:
        connected: Future[None] = Future()
        if self._closed:
            connected.set_exception(TransferFailed("the transport is closed"))
        elif peer not in self._network.caches:
            connected.set_exception(TransferFailed(f"no worker {peer} in this process"))
        else:
            self._connected.add(peer)
            connected.set_result(None)
        return connected

    def read(
        self, peer: str, blocks: Sequence[int], slot: Slot, order: float = 0.0, part: BlockPart = WHOLE
    ) -> Future[None]:
        read: Future[None] = Future()
        read.set_running_or_notify_cancel()
        with self._lock:
            self.num_reads += 1
            fault = self._faults.popleft() if self._faults else None

            def run() -> None:
                self._copy(peer, blocks, slot, part, read, fault)

            if self._closed:
                read.set_exception(TransferFailed("the transport is closed"))
            elif self._stalling:
                self._stalled.append((order, run))
            else:
                self._submit(order, run)
        return read

    def forget(self, peer: str) -> None:
        self._connected.discard(peer)

    def keep_awake(self, awake: bool) -> None:
        """A copy needs nobody else's help."""

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            self._closed = True
        self._network.caches.pop(self._incarnation, None)
        self._thread.shutdown(wait=True)

    def fail_next(self, message: str = "the link broke") -> None:
        """The next read that has no fate yet ends with TransferFailed."""
        with self._lock:
            self._faults.append(message)

    def pass_next(self) -> None:
        """The next read that has no fate yet succeeds."""
        with self._lock:
            self._faults.append(None)

    def stall(self) -> None:
        """From now on reads do not end, until `resume`."""
        with self._lock:
            self._stalling = True

    def stop_stalling(self) -> None:
        """New reads run; the stalled ones wait for `resume`."""
        with self._lock:
            self._stalling = False

    def resume(self) -> None:
        """The stalled reads happen now, with what the peer's blocks hold now."""
        with self._lock:
            self._stalling = False
            while self._stalled:
                self._submit(*self._stalled.popleft())

    def _submit(self, order: float, run: Callable[[], None]) -> None:
        self._waiting.append((order, run))
        self._thread.submit(self._run_next)

    def _run_next(self) -> None:
        with self._lock:
            first = min(self._waiting, key=lambda waiting: waiting[0])
            self._waiting.remove(first)
        first[1]()

    def _copy(
        self, peer: str, blocks: Sequence[int], slot: Slot, part: BlockPart, read: Future[None], fault: str | None
    ) -> None:
        cache = self._network.caches.get(peer) if peer in self._connected else None
        try:
            if fault is not None:
                raise TransferFailed(fault)
            if cache is None:
                raise TransferFailed(f"{peer} is not connected")
            if not all(0 <= block < cache.num_blocks for block in blocks):
                raise TransferFailed(f"{peer} has no blocks {list(blocks)}")
            _copy_parts(cache, blocks, slot, part)
        except (TransferFailed, ValueError) as error:
            read.set_exception(TransferFailed(str(error)))
        else:
            read.set_result(None)


def _copy_parts(cache: KVCache, blocks: Sequence[int], slot: Slot, part: BlockPart) -> None:
    wanted = part.within(cache.block_bytes)
    if len(blocks) * len(wanted) > len(slot.memory):
        raise ValueError(f"{len(blocks)} blocks of {len(wanted)} bytes do not fit into a slot of {len(slot.memory)}")
    source = cache.as_bytes()[:, wanted.start : wanted.stop]
    for i, block in enumerate(blocks):
        slot.memory[i * len(wanted) : (i + 1) * len(wanted)].copy_(source[block])
