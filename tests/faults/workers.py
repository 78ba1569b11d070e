"""A prefill and a decode worker as far as hand-offs go: real engines, leases, links and staging, without gRPC.

Each is one incarnation. A dead one does nothing more; what it held is gone with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.engine import Engine, StepResult
from engine.engine_thread import EngineThread
from engine.request import Request, RequestKind, SamplingParams
from engine.sampled_token import SampledToken
from engine.scheduler import TokenOutput
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import Handoff
from kv_transfer.lease import LeaseTable
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import Compatibility, FailureReason, HandoffError, PeerInfo, Ticket, TransportInfo
from kv_transfer.peer_link import PeerLink
from kv_transfer.staging import StagingRing
from tests.faults.faulty_transport import FaultyTransport


class WorkerDied(Exception):
    """Whatever was running there ended without a word."""


def peer_info(incarnation: str, engine: Engine) -> PeerInfo:
    layout = engine.cache.layout
    compatibility = Compatibility(
        protocol_version=1,
        model_fingerprint=engine.model.fingerprint,
        kv_dtype=layout.dtype,
        block_size=layout.block_size,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
    )
    return PeerInfo(incarnation, compatibility, (TransportInfo(FaultyTransport.name, b""),))


def make_request(
    request_id: str, prompt: Sequence[int], max_tokens: int, kind: RequestKind, *, awaits_kv: bool = False
) -> Request:
    arrived_at = asyncio.get_running_loop().time()
    return Request(
        request_id,
        list(prompt),
        len(prompt),
        SamplingParams(max_tokens=max_tokens),
        kind,
        arrived_at=arrived_at,
        awaits_kv=awaits_kv,
    )


class PrefillWorker:
    """Maintains its lease table, by a clock that may jump. `dies_silently`: nobody is told of its death."""

    def __init__(self, name: str, incarnation: str, thread: EngineThread, config: TransferConfig) -> None:
        self.name = name
        self.incarnation = incarnation
        self.thread = thread
        self.is_dead = False
        self.dies_silently = False
        self.death = asyncio.Event()
        self.skew_s = 0.0
        self.awake = False
        self.leases = LeaseTable(thread.engine, config, self._keep_awake)
        self.peer = LocalPeer(peer_info(incarnation, thread.engine), self.leases, thread, self._now)
        self._loop = asyncio.get_running_loop()
        thread.start()

    async def prefill(self, request: Request, ticket: Ticket) -> None:
        """Raises what the lease table and the engine do."""
        await asyncio.wrap_future(self.thread.call(lambda _: self.leases.prefill(request, ticket, self._now())))

    async def abort(self, ticket: Ticket) -> None:
        await asyncio.wrap_future(self.thread.call(lambda _: self.leases.abort(ticket, self._now())))

    def die(self) -> None:
        self.is_dead = True
        self.thread.stop()
        self.death.set()

    def left_over(self) -> list[str]:
        """What is not at its baseline, long after everything has ended."""
        found = engine_left_over(self.thread.engine)
        if self.leases.counts().active:
            found.append(f"{self.leases.counts().active} leases")
        if self.awake:
            found.append("the transport is still kept awake")
        return [f"{self.incarnation}: {text}" for text in found]

    def _keep_awake(self, awake: bool) -> None:
        self.awake = awake

    def _now(self) -> float:
        return self._loop.time() + self.skew_s


@dataclass(slots=True, eq=False)
class Running:
    """One request on D."""

    reserved: asyncio.Future[None]
    ended: asyncio.Future[None]
    tokens: list[int] = field(default_factory=list)


class DecodeWorker:
    """Maintains one link for each incarnation of a P, and the requests that run. The same order of steps as in the
    decode service, without streams."""

    def __init__(
        self,
        name: str,
        incarnation: str,
        thread: EngineThread,
        transport: FaultyTransport,
        config: TransferConfig,
        new_link: Callable[[DecodeWorker, PrefillWorker], PeerLink],
        on_exhausted: Callable[[DecodeWorker], None],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.thread = thread
        self.transport = transport
        self.info = peer_info(incarnation, thread.engine)
        block_bytes = thread.engine.cache.block_bytes
        self.ring = StagingRing(config, block_bytes, "cpu", lambda _: on_exhausted(self))
        self.is_dead = False
        self.death = asyncio.Event()
        self.links: dict[str, PeerLink] = {}
        self._config = config
        self._new_link = new_link
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[list[int]]] = set()
        self._loop = asyncio.get_running_loop()
        thread.subscribe(self._on_step)
        thread.start()

    async def generate(
        self, request: Request, source: PrefillWorker | None, ticket: Ticket, deadline: float
    ) -> list[int]:
        """All tokens. Raises HandoffError, or WorkerDied; without a source the prompt is computed here."""
        task = self._loop.create_task(self._generate(request, source, ticket, deadline))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if self.is_dead:
            raise WorkerDied(self.incarnation)
        return task.result()

    def die(self) -> None:
        self.is_dead = True
        self.transport.close()
        self.thread.stop()
        self.death.set()
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        for link in self.links.values():
            await link.close()

    def left_over(self) -> list[str]:
        found = engine_left_over(self.thread.engine)
        counts = self.ring.counts()
        if counts.busy or counts.quarantined != self.transport.num_lost:
            found.append(f"slots: {counts}, {self.transport.num_lost} reads never ended")
        if self.ring.num_waiting:
            found.append(f"{self.ring.num_waiting} wait for a slot")
        if self._running or self._tasks:
            found.append(f"{len(self._running)} requests, {len(self._tasks)} tasks")
        return [f"{self.incarnation}: {text}" for text in found]

    async def _generate(
        self, request: Request, source: PrefillWorker | None, ticket: Ticket, deadline: float
    ) -> list[int]:
        running = Running(self._loop.create_future(), self._loop.create_future())
        self._running[request.request_id] = running
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wrap_future(self.thread.call(lambda engine: engine.add(request)))
                if source is not None and await self._receive(request, running, source, ticket, deadline):
                    return running.tokens
                await running.ended
                return running.tokens
        except TimeoutError:
            raise HandoffError(FailureReason.DEADLINE, "the request's deadline passed") from None
        finally:
            del self._running[request.request_id]
            self.thread.tell(lambda engine: engine.abort(request.request_id))

    async def _receive(
        self, request: Request, running: Running, source: PrefillWorker, ticket: Ticket, deadline: float
    ) -> bool:
        """Whether the first token was the last one too."""
        try:
            async with asyncio.timeout(self._config.reserve_timeout_s):
                await running.reserved
        except TimeoutError:
            raise HandoffError(FailureReason.RESERVE_TIMEOUT, "no KV blocks in time") from None
        link = self.links.get(source.incarnation)
        if link is None:
            link = self.links[source.incarnation] = self._new_link(self, source)
        result = await Handoff(request, ticket, link, self.thread, self.ring, self._config).run(deadline)
        if result.finish_reason is not None:
            running.tokens.append(result.first_token.token_id)
            return True
        first = result.first_token
        await asyncio.wrap_future(self.thread.call(lambda engine: self._accept(engine, request, running, first)))
        return False

    @staticmethod
    def _accept(engine: Engine, request: Request, running: Running, first: SampledToken) -> None:
        running.tokens.append(engine.accept(request.request_id, first).token_id)

    def _on_step(self, result: StepResult) -> None:
        """In the engine thread."""
        self._loop.call_soon_threadsafe(self._after_step, result)

    def _after_step(self, result: StepResult) -> None:
        for request in result.reserved:
            running = self._running.get(request.request_id)
            if running is not None and not running.reserved.done():
                running.reserved.set_result(None)
        for output in result.tokens:
            self._take(output)
        for request_id, message in [*result.failed, *result.unsampled]:
            running = self._running.get(request_id)
            if running is not None and not running.ended.done():
                running.ended.set_exception(RuntimeError(message))

    def _take(self, output: TokenOutput) -> None:
        running = self._running.get(output.request_id)
        if running is None:
            return
        running.tokens.append(output.token_id)
        if output.finish_reason is not None and not running.ended.done():
            running.ended.set_result(None)


def engine_left_over(engine: Engine) -> list[str]:
    engine.check_integrity()
    counts = engine.pool.counts()
    found = [f"blocks: {counts}"] if counts.used or counts.leased else []
    return [*found, f"requests: {sorted(engine.requests)[:5]}"] if engine.requests else found
