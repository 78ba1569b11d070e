"""Two prefill and two decode workers in one process, perhaps two pool nodes, and who replaces the dead."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from engine.engine_thread import EngineThread
from engine.kv_cache import KVCache
from kv_transfer.config import TransferConfig
from kv_transfer.peer import Peer
from kv_transfer.peer_link import PeerLink
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_ring import PoolMember
from kv_transfer.pool_source import OfferingWorker
from tests.faults.decode_worker import DecodeWorker
from tests.faults.fault import Fault, Faults, Message
from tests.faults.faulty_peer import FaultyPeer
from tests.faults.faulty_pool import FaultyOfferingWorker, FaultyPoolNode
from tests.faults.faulty_transport import FaultyTransport
from tests.faults.faulty_two_sided import TwoSidedKind
from tests.faults.mortal import Mortal, MortalTransport
from tests.faults.pool_member import PoolMemberNode
from tests.faults.pool_side import PoolSide
from tests.faults.prefill_worker import PrefillWorker
from tests.faults.wires import D_DIES, NODE_DIES, P_DIES, WORKER_DIES, Blow, PairWire, stopped_s

NUM_WORKERS = 2  # of each role
Worker = PrefillWorker | DecodeWorker


@dataclass(frozen=True, slots=True)
class Settings:
    """`wrap` and the next two: what stands between the wire and P, a node, or a worker that offers; a test puts one
    with a fault of its own there.

    Without `two_sided` reads are one-sided; without `new_arena` there is no pool.
    """

    config: TransferConfig
    new_prefill_engine: Callable[[], EngineThread]
    new_decode_engine: Callable[[], EngineThread]
    restart_s: float
    fingerprint: str  # of the model
    two_sided: TwoSidedKind | None = None
    new_arena: Callable[[], KVCache] | None = None
    wrap: Callable[[Peer], Peer] = lambda peer: peer
    wrap_node: Callable[[PoolNode], PoolNode] = lambda node: node
    wrap_offering: Callable[[OfferingWorker], OfferingWorker] = lambda worker: worker


class SmallCluster:
    """Maintains a living worker, or node, for each name, but for a while after a death."""

    def __init__(self, settings: Settings, faults: Faults) -> None:
        self.faults = faults
        self.prefill: dict[str, PrefillWorker] = {}
        self.decode: dict[str, DecodeWorker] = {}
        self.pool: dict[str, PoolMemberNode] = {}
        self.num_deaths = 0
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._incarnations = itertools.count(1)
        self._all: dict[str, Worker | PoolMemberNode] = {}  # by incarnation, the dead too
        self._wires: list[PairWire] = []
        self._background: set[asyncio.Task[Any]] = set()
        for n in range(NUM_WORKERS):
            if settings.new_arena is not None:
                self._start_node(f"N{n}")
            self._start_prefill(f"P{n}")
            self._start_decode(f"D{n}")

    def members(self) -> list[PoolMember]:
        """As last known: a node that has just died is still among them."""
        return [node.member for node in self.pool.values()]

    def kill(self, end: Mortal) -> None:
        """It is replaced after a while."""
        if end.is_dead:
            return
        end.die(silently=Random(f"{self.faults.seed} {end.incarnation}").random() < 0.5)
        start = {"P": self._start_prefill, "D": self._start_decode, "N": self._start_node}[end.name[0]]
        self._loop.call_later(self._settings.restart_s, start, end.name)
        self.num_deaths += 1
        for wire in self._wires:
            wire.see_cut()

    def in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._forget)
        return task

    def left_over(self) -> list[str]:
        """At the living: nothing, long after all requests have ended."""
        return [text for end in self._all.values() if not end.is_dead for text in end.left_over()]

    async def stop(self) -> list[str]:
        """Ends everything; what was left over."""
        left_over = self.left_over()
        for task in list(self._background):
            task.cancel()
        for worker in self._workers():
            if worker.pool is not None:
                await worker.pool.client.close()
            if isinstance(worker, DecodeWorker):
                await worker.close()
        for node in self._all.values():
            if isinstance(node, PoolMemberNode):
                await node.close()
        for worker in self._workers():
            if not worker.is_dead:
                await worker.transport.end()
                worker.thread.stop()
        return left_over

    def _workers(self) -> list[Worker]:
        return [end for end in self._all.values() if not isinstance(end, PoolMemberNode)]

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # seen by who waited for it, if anybody still did

    def _start_prefill(self, name: str) -> None:
        incarnation, thread = f"{name}.{next(self._incarnations)}", self._settings.new_prefill_engine()
        transport = self._new_transport(incarnation, thread.engine.cache)
        worker = PrefillWorker(name, incarnation, thread, transport, self._settings.config, self.kill)
        self.prefill[name] = self._all[incarnation] = worker
        self._join_pool(worker)

    def _start_decode(self, name: str) -> None:
        incarnation, thread = f"{name}.{next(self._incarnations)}", self._settings.new_decode_engine()
        transport = self._new_transport(incarnation, thread.engine.cache)
        config = self._settings.config
        worker = DecodeWorker(name, incarnation, thread, transport, config, self._new_link, self.kill)
        self.decode[name] = self._all[incarnation] = worker
        self._join_pool(worker)

    def _start_node(self, name: str) -> None:
        assert self._settings.new_arena is not None
        incarnation, arena = f"{name}.{next(self._incarnations)}", self._settings.new_arena()
        transport = self._faulty_transport(incarnation, Message.PULL)
        config = self._settings.config
        node = PoolMemberNode(
            name, incarnation, arena, self._settings.fingerprint, transport, config, self._reach, self.kill
        )
        self.pool[name] = self._all[incarnation] = node

    def _join_pool(self, worker: Worker) -> None:
        if self.pool:
            config, open_node = self._settings.config, partial(self._open_node, worker)
            worker.pool = PoolSide(
                worker.info, worker.thread, worker.transport, worker.ring, config, open_node, worker.now
            )

    def _new_transport(self, incarnation: str, cache: KVCache) -> MortalTransport:
        two_sided = self._settings.two_sided
        if two_sided is not None:
            return two_sided.transport(incarnation, cache, partial(self._strike_source, incarnation))
        return self._faulty_transport(incarnation, Message.POOL_READ if self.pool else Message.READ)

    def _faulty_transport(self, incarnation: str, message: Message) -> FaultyTransport:
        def stopped(peer: str) -> float:
            return stopped_s(self._all, peer, incarnation)

        strike = partial(self._strike, incarnation)
        return FaultyTransport(incarnation, self.faults, self._cache_of, strike, message, stopped)

    def _strike(self, reader: str, source: str, fault: Fault | None, after: bool) -> None:
        """At a read, whose two ends are as those of a call are."""
        if reader in self._all and not self._all[source].is_dead:
            self._blow(self._all[reader], self._all[source]).strike(fault, after=after)

    def _strike_source(self, source: str, reader: str, fault: Fault | None, after: bool) -> None:
        self._strike(reader, source, fault, after)

    def _cache_of(self, incarnation: str) -> KVCache | None:
        end = self._all[incarnation]
        if end.is_dead:
            return None
        return end.arena if isinstance(end, PoolMemberNode) else end.thread.engine.cache

    def _blow(self, caller: Worker | PoolMemberNode, called: Worker | PoolMemberNode) -> Blow:
        if isinstance(called, PoolMemberNode):
            deaths = WORKER_DIES, NODE_DIES
        else:
            deaths = (NODE_DIES, WORKER_DIES) if isinstance(caller, PoolMemberNode) else (D_DIES, P_DIES)
        return Blow(caller, called, *deaths, self.kill, self._settings.config.lease_s, self.faults.time_scale)

    def _wire(self, caller: Worker | PoolMemberNode, called: Worker | PoolMemberNode) -> PairWire:
        wire = PairWire(self._blow(caller, called), self.faults, self.in_background)
        self._wires.append(wire)
        return wire

    def _new_link(self, decode: DecodeWorker, prefill: PrefillWorker) -> PeerLink:
        peer = FaultyPeer(self._settings.wrap(prefill.peer), self._wire(decode, prefill))
        transports = {decode.transport.name: decode.transport}
        return PeerLink(peer, prefill.incarnation, decode.info, transports, self._settings.config)

    def _open_node(self, worker: Worker, member: PoolMember) -> PoolNode:
        node = self._all[member.incarnation]
        assert isinstance(node, PoolMemberNode)
        return FaultyPoolNode(self._settings.wrap_node(node.node), self._wire(worker, node))

    def _reach(self, node: PoolMemberNode, address: str) -> OfferingWorker:
        worker = self._all[address]
        assert not isinstance(worker, PoolMemberNode)
        assert worker.pool is not None
        return FaultyOfferingWorker(self._settings.wrap_offering(worker.pool), self._wire(node, worker))
