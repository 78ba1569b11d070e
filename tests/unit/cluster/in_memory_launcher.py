"""A `Launcher` whose processes are objects: tests say when they become ready, break or die."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.launcher import ProcessLost, ProxyReport, RunningProxy, RunningWorker, WorkerReport
from cluster.membership import Addresses
from cluster.placements import NoPlaceError
from cluster.spec import ProcessSpec, ProxySpec
from kv_transfer.peer_address import PeerAddress
from rpc import worker_pb2


class InMemoryWorker:
    """Ready at once unless `start_error` is set; `num_running` requests end only by a drain's timeout."""

    def __init__(self, spec: ProcessSpec, num_restarts: int, start_error: str | None, process: int = 0) -> None:
        self.process = process  # those that follow each other in one have the same number
        self.met: list[PeerAddress] = []
        self.release_error: str | None = None
        self.spec = spec
        self.num_restarts = num_restarts
        self.addresses: Addresses | None = None
        self.is_draining = False
        self.drained_for_s: float | None = None
        self.num_running = 0
        self.load = worker_pb2.Load(num_blocks=100, num_free_blocks=75, admitting=True)
        self.describe_error: Exception | None = None
        self.is_alive = True
        self.was_stopped = False
        self.drain_may_end = asyncio.Event()
        self.drain_may_end.set()
        self._start_error = start_error
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        if self._start_error is not None:
            raise ProcessLost(self._start_error)
        self.addresses = Addresses(f"{self.spec.name}:1", f"{self.spec.name}:2", "node", ("local",))

    async def describe(self) -> WorkerReport:
        self._check_alive()
        if self.describe_error is not None:
            raise self.describe_error
        load = worker_pb2.Load()
        load.CopyFrom(self.load)
        load.num_running = self.num_running
        return WorkerReport(pid=7, uptime_s=1.0, load=load)

    async def watch(self) -> str:
        return await asyncio.shield(self._ended)

    async def drain(self, timeout_s: float) -> int:
        self._check_alive()
        self.is_draining, self.drained_for_s = True, timeout_s
        await self.drain_may_end.wait()
        return self.num_running

    async def meet(self, peers: Sequence[PeerAddress]) -> None:
        self._check_alive()
        self.met += peers

    async def release(self) -> None:
        if self.release_error is not None:
            raise ProcessLost(self.release_error)
        self.die("released")

    async def stop(self) -> None:
        self.was_stopped = True
        self.die("stopped")

    def die(self, reason: str) -> None:
        self.is_alive = False
        if not self._ended.done():
            self._ended.set_exception(ProcessLost(reason))
            self._ended.exception()  # seen: nobody may be watching yet

    def break_down(self, reason: str) -> None:
        """It lives, and says that it cannot go on."""
        self._ended.set_result(reason)

    def _check_alive(self) -> None:
        if not self.is_alive:
            raise ProcessLost("it is dead")


class InMemoryProxy:
    def __init__(self) -> None:
        self.is_alive = True
        self.has_name = True
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def describe(self) -> ProxyReport:
        return ProxyReport(pid=9, num_restarts=0, last_error="")

    async def watch(self) -> str:
        return await asyncio.shield(self._ended)

    async def stop(self) -> None:
        self.die("stopped")
        self.has_name = False

    def die(self, reason: str) -> None:
        self.is_alive = False
        self.has_name = False
        self.fall_ill(reason)

    def fall_ill(self, reason: str) -> None:
        """It breaks when it is asked, lives on and keeps its name, until it is stopped."""
        if not self._ended.done():
            self._ended.set_exception(ProcessLost(reason))
            self._ended.exception()


@dataclass
class InMemoryLauncher:
    """Maintains what it launched, in order."""

    workers: list[InMemoryWorker] = field(default_factory=list)
    proxies: list[InMemoryProxy] = field(default_factory=list)
    start_errors: dict[str, str] = field(default_factory=dict)  # by worker name
    placeless: set[str] = field(default_factory=set)  # worker names that no machine has room for
    proxy_launched: asyncio.Event = field(default_factory=asyncio.Event)
    proxy_may_launch: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.proxy_may_launch.set()

    def launch(self, spec: ProcessSpec, num_restarts: int) -> RunningWorker:
        if spec.name in self.placeless:
            raise NoPlaceError(f"no machine for {spec.name}")
        return self._add(spec, num_restarts, len(self.workers))

    def take_over(self, released: RunningWorker, spec: ProcessSpec, num_restarts: int) -> RunningWorker:
        assert isinstance(released, InMemoryWorker)
        return self._add(spec, num_restarts, released.process)

    async def launch_proxy(self, spec: ProxySpec) -> RunningProxy:
        if any(proxy.has_name for proxy in self.proxies):
            raise ValueError("the name proxy is taken")
        self.proxies.append(InMemoryProxy())
        self.proxy_launched.set()
        await self.proxy_may_launch.wait()
        return self.proxies[-1]

    async def adopt(self) -> tuple[list[RunningWorker], RunningProxy | None]:
        living: list[RunningWorker] = [worker for worker in self.workers if worker.is_alive]
        return living, next((proxy for proxy in self.proxies if proxy.is_alive), None)

    def newest(self, name: str) -> InMemoryWorker:
        return [worker for worker in self.workers if worker.spec.name == name][-1]

    def _add(self, spec: ProcessSpec, num_restarts: int, process: int) -> InMemoryWorker:
        worker = InMemoryWorker(spec, num_restarts, self.start_errors.get(spec.name), process)
        self.workers.append(worker)
        return worker

    @property
    def living(self) -> list[str]:
        return sorted(worker.spec.name for worker in self.workers if worker.is_alive)
