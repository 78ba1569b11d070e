"""Two-sided transports over pipes whose entries are lost, refused or late, with threads or in the event loop's time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from engine.kv_cache import KVCache
from kv_transfer.block_part import WHOLE, BlockPart
from kv_transfer.communicator import End
from kv_transfer.config import TransferConfig
from kv_transfer.signalling import Invitation, Signalling
from kv_transfer.staging import Slot
from kv_transfer.transport import TransferFailed
from kv_transfer.two_sided import TwoSidedTransport
from tests.faults.fault import Fault, Faults, Message
from tests.faults.strands import Strands, StrandSignalling
from tests.pipe_communicator import PipeCommunicator, PipeCommunicators, PipeNetwork

ENTRY_S = 0.001
Strike = Callable[[str, Fault | None, bool], None]  # at the reader or its source, before (False) or after


class FaultyCommunicator:
    """The source's end draws each entry's fate; the reader's end is the pipe's own."""

    def __init__(self, inner: PipeCommunicator, kind: FaultyCommunicators, reader: str) -> None:
        self._inner = inner
        self._kind = kind
        self._reader = reader

    def send(self, tensor: Tensor, timeout_s: float) -> None:
        kind = self._kind
        draw = kind.faults.draw(Message.ENTRY, kind.incarnation)
        kind.strike(self._reader, draw.fault, after=False)
        late_s = draw.delay_s if draw.fault is Fault.LATE else 0.0
        kind.sleep(ENTRY_S + min(late_s, timeout_s))
        if draw.fault is Fault.REFUSED or late_s > timeout_s:
            raise TransferFailed("the link broke")
        if draw.fault is not Fault.LOST:
            self._inner.send(tensor, timeout_s)
        kind.strike(self._reader, draw.fault, after=True)

    def receive(self, tensor: Tensor, timeout_s: float) -> None:
        self._inner.receive(tensor, timeout_s)

    def abort(self) -> None:
        self._inner.abort()


@dataclass(slots=True)
class FaultyCommunicators:
    """One worker's. Maintains the communicators that it had, all of which end with it."""

    incarnation: str
    network: PipeNetwork
    faults: Faults
    on_fault: Strike  # called on the loop
    sleep: Callable[[float], None]
    name: str = PipeCommunicators.name
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _communicators: list[PipeCommunicator] = field(default_factory=list)

    def rendezvous(self) -> bytes:
        return self.incarnation.encode()

    def meet(self, communicator: bytes, rendezvous: bytes, end: End, timeout_s: float) -> FaultyCommunicator:
        pipes = PipeCommunicators(self.network)
        inner = pipes.meet(communicator, pipes.rendezvous(), end, timeout_s)
        self._communicators.append(inner)
        return FaultyCommunicator(inner, self, rendezvous.decode())

    def strike(self, reader: str, fault: Fault | None, *, after: bool) -> None:
        if fault is not None:
            self._loop.call_soon_threadsafe(self.on_fault, reader, fault, after)

    def abort_all(self) -> None:
        for communicator in self._communicators:
            communicator.abort()


class ThreadedTwoSided(TwoSidedTransport):
    """With threads of its own, as in a real worker."""

    num_lost = 0  # each read is resolved

    def __init__(self, cache: KVCache, kind: FaultyCommunicators, config: TransferConfig) -> None:
        super().__init__(kind.incarnation, cache, kind, config)
        self._communicators = kind

    def die(self, silently: bool) -> None:
        """Unless it does so silently, who talks to it sees its connections break."""
        if not silently:
            self._communicators.abort_all()
        self.close(0.0)

    async def end(self) -> None:
        await asyncio.to_thread(self.close)


class StrandedTwoSided(TwoSidedTransport):
    """With strands for threads; these belong to its incarnation."""

    num_lost = 0

    def __init__(self, cache: KVCache, kind: FaultyCommunicators, config: TransferConfig, strands: Strands) -> None:
        super().__init__(kind.incarnation, cache, kind, config)
        self._communicators = kind
        self._strands = strands

    def connect(self, peer: str, metadata: bytes, signalling: Signalling | None = None) -> Future[None]:
        assert signalling is not None
        with self._strands.owned_by(self._incarnation):
            return super().connect(peer, metadata, StrandSignalling(signalling, self._strands))

    def read(
        self, peer: str, blocks: Sequence[int], slot: Slot, order: float = 0.0, part: BlockPart = WHOLE
    ) -> Future[None]:
        with self._strands.owned_by(self._incarnation):
            return super().read(peer, blocks, slot, order, part)

    def join(self, invitation: Invitation) -> None:
        with self._strands.owned_by(self._incarnation):
            super().join(invitation)

    def die(self, silently: bool) -> None:
        self._closed = True  # a late Join starts nothing any more
        if not silently:
            self._communicators.abort_all()
        for strand in self._strands.of(self._incarnation):
            strand.kill()

    async def end(self) -> None:
        closing = Future[None]()

        def close() -> None:
            self.close()
            closing.set_result(None)

        self._strands.Thread(close).start()
        await asyncio.wrap_future(closing)


@dataclass(frozen=True, slots=True)
class TwoSidedKind:
    """How a round's two-sided transports are made. Without strands they have threads, and the real clock."""

    faults: Faults
    config: TransferConfig
    network: PipeNetwork
    strands: Strands | None

    @classmethod
    def of(cls, faults: Faults, config: TransferConfig, strands: Strands | None) -> TwoSidedKind:
        network = PipeNetwork(threading.Condition if strands is None else strands.Condition)
        return cls(faults, config, network, strands)

    def transport(self, incarnation: str, cache: KVCache, strike: Strike) -> ThreadedTwoSided | StrandedTwoSided:
        sleep = time.sleep if self.strands is None else self.strands.sleep
        kind = FaultyCommunicators(incarnation, self.network, self.faults, strike, sleep)
        if self.strands is None:
            return ThreadedTwoSided(cache, kind, self.config)
        return StrandedTwoSided(cache, kind, self.config, self.strands)
