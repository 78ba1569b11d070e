"""How the controller makes and reaches processes, whatever carries them: Ray in a cluster, plain objects in unit tests.

Death is an event: `watch` ends when the process does, and nothing polls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.membership import Addresses
from cluster.spec import ProcessSpec, ProxySpec
from kv_transfer.peer_address import PeerAddress
from rpc import worker_pb2


class ProcessLost(Exception):
    """The process is dead, or broke while it was asked; the message says how."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a living worker says of itself."""

    pid: int
    uptime_s: float
    load: worker_pb2.Load


@dataclass(frozen=True, slots=True)
class ProxyReport:
    pid: int | None  # None between two starts
    num_restarts: int
    last_error: str


class RunningWorker(Protocol):
    """One incarnation's process."""

    @property
    def spec(self) -> ProcessSpec: ...

    @property
    def num_restarts(self) -> int: ...

    @property
    def addresses(self) -> Addresses | None:
        """None until it is ready."""
        ...

    @property
    def is_draining(self) -> bool: ...

    async def start(self) -> None:
        """Returns when it serves; `addresses` is set then. Raises ProcessLost."""
        ...

    async def describe(self) -> WorkerReport:
        """Raises ProcessLost."""
        ...

    async def watch(self) -> str:
        """Why it cannot go on, although it lives. Raises ProcessLost when it is dead."""
        ...

    async def drain(self, timeout_s: float) -> int:
        """Takes nothing new, waits for what runs; how many requests it aborted at the timeout. Raises ProcessLost."""
        ...

    async def meet(self, peers: Sequence[PeerAddress]) -> None:
        """Connects to workers that KV may soon come from, as far as they can be reached. Raises ProcessLost."""
        ...

    async def release(self) -> None:
        """Ends the incarnation and keeps its process, with the model, for `Launcher.take_over`; `watch` ends.

        Raises ProcessLost.
        """
        ...

    async def stop(self) -> None:
        """Ends it, gracefully for a few seconds, then not. Never raises."""
        ...


class RunningProxy(Protocol):
    """The proxy's process and whoever restarts it."""

    async def describe(self) -> ProxyReport:
        """Raises ProcessLost."""
        ...

    async def watch(self) -> str:
        """Why it no longer keeps the proxy running, although it lives. Raises ProcessLost when it is dead."""
        ...

    async def stop(self) -> None:
        """Never raises."""
        ...


class Launcher(Protocol):
    """Two exist: `RayLauncher`, and one in memory for tests."""

    def launch(self, spec: ProcessSpec, num_restarts: int) -> RunningWorker:
        """A process that does nothing yet: call `start`. Raises NoPlaceError."""
        ...

    def take_over(self, released: RunningWorker, spec: ProcessSpec, num_restarts: int) -> RunningWorker:
        """Another worker in the process of one that was released, which it is no more: call `start`."""
        ...

    async def launch_proxy(self, spec: ProxySpec) -> RunningProxy:
        """Raises ProcessLost."""
        ...

    async def adopt(self) -> tuple[list[RunningWorker], RunningProxy | None]:
        """What an earlier controller left and lives; what does not answer is ended."""
        ...
