"""Communicators within one process, which a test can hold up: what Gloo and NCCL are to a two-sided transport."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from torch import Tensor

from kv_transfer.communicator import End
from kv_transfer.transport import TransferFailed


class Condition(Protocol):
    """As far as pipes use one."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None, /
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Flag:
    """What `threading.Event` is, by whatever condition."""

    def __init__(self, changed: Condition) -> None:
        self._changed = changed
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout_s)


class Meeting:
    """Both ends come, or neither has met the other."""

    def __init__(self, changed: Condition) -> None:
        self._changed = changed
        self._num_arrived = 0
        self._failed = False

    def wait(self, timeout_s: float) -> None:
        """Raises TransferFailed."""
        with self._changed:
            self._num_arrived += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_arrived == len(End) or self._failed, timeout_s)
            if self._num_arrived < len(End) or self._failed:
                self._failed = True
                self._changed.notify_all()
                raise TransferFailed(f"nobody came in {timeout_s:g} s")


class Pipe:
    """One communicator's bytes under way."""

    def __init__(self, changed: Condition) -> None:
        self.changed = changed  # guards `entries`
        self.entries: deque[Tensor] = deque()
        self.arrived = Meeting(changed)
        self.aborted = Flag(changed)


class PipeNetwork:
    """Maintains every pipe by its communicator's name. While `flows` is not set, nothing is sent."""

    def __init__(self, new_condition: Callable[[], Condition] = threading.Condition) -> None:
        self.pipes: dict[bytes, Pipe] = {}
        self.flows = threading.Event()
        self.flows.set()
        self.sent: list[bytes] = []  # each entry's header, and its bytes
        self.changes = 0  # headers that get changed on their way
        self._new_condition = new_condition
        self._lock = threading.Lock()

    def pipe(self, name: bytes) -> Pipe:
        with self._lock:
            return self.pipes.setdefault(name, Pipe(self._new_condition()))


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
        with self._pipe.changed:
            self._pipe.entries.append(entry)
            self._pipe.changed.notify_all()

    def receive(self, tensor: Tensor, timeout_s: float) -> None:
        pipe = self._pipe
        with pipe.changed:
            if not pipe.changed.wait_for(lambda: bool(pipe.entries) or pipe.aborted.is_set(), timeout_s):
                raise TransferFailed(f"nothing came in {timeout_s:g} s")
            if not pipe.entries:
                raise TransferFailed("the other side is gone")
            entry = pipe.entries.popleft()
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
        pipe.arrived.wait(timeout_s)
        return PipeCommunicator(self._network, pipe)
