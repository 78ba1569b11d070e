"""Two prefill and two decode workers in one process, the bad wires between them, and who replaces the dead."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from engine.engine_thread import EngineThread
from engine.kv_cache import KVCache
from kv_transfer.config import TransferConfig
from kv_transfer.peer import Peer
from kv_transfer.peer_link import PeerLink
from tests.faults.fault import DEATHS, Fault, Faults
from tests.faults.faulty_peer import FaultyPeer
from tests.faults.faulty_transport import FaultyTransport
from tests.faults.workers import DecodeWorker, PrefillWorker

NUM_WORKERS = 2  # of each role


@dataclass(frozen=True, slots=True)
class Settings:
    """`wrap`: what stands between the wire and P; a test puts a peer with a fault of its own there."""

    config: TransferConfig
    new_prefill_engine: Callable[[], EngineThread]
    new_decode_engine: Callable[[], EngineThread]
    restart_s: float
    wrap: Callable[[Peer], Peer] = lambda peer: peer


class PairWire:
    """Between one incarnation of D and one of P."""

    def __init__(self, decode: DecodeWorker, prefill: PrefillWorker, cluster: SmallCluster) -> None:
        self.name = f"{decode.incarnation} {prefill.incarnation}"
        self.faults = cluster.faults
        self.cut_seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decode = decode
        self._prefill = prefill
        self._cluster = cluster

    def strike(self, fault: Fault | None, *, after: bool) -> None:
        self._cluster.strike(self._decode, self._prefill, fault, after=after)

    def is_cut(self) -> bool:
        return self._decode.is_dead or self._prefill.is_dead

    def see_cut(self) -> None:
        told = self._decode.is_dead or (self._prefill.is_dead and not self._prefill.dies_silently)
        if told and not self.cut_seen.done():
            self.cut_seen.set_result(None)

    def in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        return self._cluster.in_background(work)


class SmallCluster:
    """Maintains a living worker for each name, but for a while after a death."""

    def __init__(self, settings: Settings, faults: Faults) -> None:
        self.faults = faults
        self.prefill: dict[str, PrefillWorker] = {}
        self.decode: dict[str, DecodeWorker] = {}
        self.num_deaths = 0
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._incarnations = itertools.count(1)
        self._wires: list[PairWire] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._buried: list[DecodeWorker] = []
        for n in range(NUM_WORKERS):
            self._start_prefill(f"P{n}")
            self._start_decode(f"D{n}")

    def strike(self, decode: DecodeWorker, prefill: PrefillWorker, fault: Fault | None, *, after: bool) -> None:
        match fault:
            case Fault.CLOCK_JUMPS if not after:
                prefill.skew_s += self._settings.config.lease_s
            case Fault.P_DIES_BEFORE | Fault.P_DIES_AFTER if after == (fault is Fault.P_DIES_AFTER):
                self.kill_prefill(prefill)
            case Fault.D_DIES_BEFORE | Fault.D_DIES_AFTER if after == (fault is Fault.D_DIES_AFTER):
                self.kill_decode(decode)

    def kill_prefill(self, worker: PrefillWorker) -> None:
        if not worker.is_dead:
            worker.dies_silently = Random(f"{self.faults.seed} {worker.incarnation}").random() < 0.5
            worker.die()
            self._loop.call_later(self._settings.restart_s, self._start_prefill, worker.name)
            self._after_death()

    def kill_decode(self, worker: DecodeWorker) -> None:
        if not worker.is_dead:
            worker.die()
            self._buried.append(worker)
            self._loop.call_later(self._settings.restart_s, self._start_decode, worker.name)
            self._after_death()

    def in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._forget)
        return task

    def left_over(self) -> list[str]:
        """At the living workers: nothing, long after all requests have ended."""
        at_prefill = [text for worker in self.prefill.values() for text in worker.left_over()]
        return at_prefill + [text for worker in self.decode.values() for text in worker.left_over()]

    async def stop(self) -> list[str]:
        """Ends everything; what was left over."""
        left_over = self.left_over()
        for task in list(self._background):
            task.cancel()
        for decode in [*self.decode.values(), *self._buried]:
            await decode.close()
        for prefill in self.prefill.values():
            prefill.thread.stop()
        for decode in self.decode.values():
            decode.thread.stop()
        return left_over

    def _after_death(self) -> None:
        self.num_deaths += 1
        for wire in self._wires:
            wire.see_cut()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # seen by who waited for it, if anybody still did

    def _start_prefill(self, name: str) -> None:
        incarnation = f"{name}.{next(self._incarnations)}"
        self.prefill[name] = PrefillWorker(
            name, incarnation, self._settings.new_prefill_engine(), self._settings.config
        )

    def _start_decode(self, name: str) -> None:
        incarnation = f"{name}.{next(self._incarnations)}"

        def strike(peer: str, fault: Fault | None, after: bool) -> None:
            prefill = self._living(peer)
            if prefill is not None and fault in (*DEATHS, Fault.CLOCK_JUMPS):
                self.strike(self.decode[name], prefill, fault, after=after)

        transport = FaultyTransport(incarnation, self.faults, self._cache_of, strike)
        self.decode[name] = DecodeWorker(
            name,
            incarnation,
            self._settings.new_decode_engine(),
            transport,
            self._settings.config,
            self._new_link,
            self.kill_decode,
        )

    def _living(self, incarnation: str) -> PrefillWorker | None:
        found = [w for w in self.prefill.values() if w.incarnation == incarnation and not w.is_dead]
        return found[0] if found else None

    def _cache_of(self, incarnation: str) -> KVCache | None:
        worker = self._living(incarnation)
        return None if worker is None else worker.thread.engine.cache

    def _new_link(self, decode: DecodeWorker, prefill: PrefillWorker) -> PeerLink:
        wire = PairWire(decode, prefill, self)
        self._wires.append(wire)
        peer = FaultyPeer(self._settings.wrap(prefill.peer), wire)
        transports = {decode.transport.name: decode.transport}
        link = PeerLink(peer, prefill.incarnation, decode.info, transports, self._settings.config)
        wire.see_cut()
        return link
