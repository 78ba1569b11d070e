"""Communicators within one process, which a test can hold up: what Gloo and NCCL are to a two-sided transport."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

from torch import Tensor

from kv_transfer.communicator import End
from kv_transfer.transport import TransferFailed


@dataclass(eq=False)
class Pipe:
    """One communicator's bytes under way."""

    entries: queue.SimpleQueue[Tensor] = field(default_factory=queue.SimpleQueue)
    arrived: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    aborted: threading.Event = field(default_factory=threading.Event)


class PipeNetwork:
    """Maintains every pipe by its communicator's name. While `flows` is not set, nothing is sent."""

    def __init__(self) -> None:
        self.pipes: dict[bytes, Pipe] = {}
        self.flows = threading.Event()
        self.flows.set()
        self.sent: list[bytes] = []  # each entry's header, and its bytes
        self.changes = 0  # headers that get changed on their way
        self._lock = threading.Lock()

    def pipe(self, name: bytes) -> Pipe:
        with self._lock:
            return self.pipes.setdefault(name, Pipe())


class PipeCommunicator:
    def __init__(self, network: PipeNetwork, pipe: Pipe) -> None:
        self._network = network
        self._pipe = pipe

    def send(self, tensor: Tensor, timeout_s: float) -> None:
        if not self._network.flows.wait(timeout_s):
            raise TransferFailed("nothing flows")
        if self._pipe.aborted.is_set():
            raise TransferFailed("the other side is gone")
        self._network.sent.append(bytes(tensor.tolist()))
        entry = tensor.clone()
        if self._network.changes:
            self._network.changes -= 1
            entry[0] += 1
        self._pipe.entries.put(entry)

    def receive(self, tensor: Tensor, timeout_s: float) -> None:
        try:
            entry = self._pipe.entries.get(timeout=timeout_s)
        except queue.Empty:
            raise TransferFailed(f"nothing came in {timeout_s:g} s") from None
        if len(entry) != len(tensor):
            raise TransferFailed(f"{len(entry)} bytes came where {len(tensor)} were due")
        tensor.copy_(entry)

    def abort(self) -> None:
        self._pipe.aborted.set()


class PipeCommunicators:
    name = "pipe"

    def __init__(self, network: PipeNetwork) -> None:
        self._network = network

    def rendezvous(self) -> bytes:
        return b"here"

    def meet(self, communicator: bytes, rendezvous: bytes, end: End, timeout_s: float) -> PipeCommunicator:
        if rendezvous != b"here":
            raise TransferFailed("no such place")
        pipe = self._network.pipe(communicator)
        try:
            pipe.arrived.wait(timeout_s)
        except threading.BrokenBarrierError:
            raise TransferFailed(f"nobody came in {timeout_s:g} s") from None
        return PipeCommunicator(self._network, pipe)
