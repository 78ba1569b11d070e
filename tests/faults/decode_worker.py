"""A decode worker as far as KV goes: a real engine, links and staging, without gRPC.

It is one incarnation. A dead one does nothing more; what it held is gone with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial

from engine.engine import Engine, StepResult
from engine.engine_thread import EngineThread
from engine.request import Request
from engine.sampled_token import SampledToken
from engine.scheduler import TokenOutput
from kv_transfer.config import TransferConfig
from kv_transfer.handoff import Handoff
from kv_transfer.messages import FailureReason, HandoffError, Ticket
from kv_transfer.peer_link import PeerLink
from kv_transfer.pool_reader import PoolRead
from kv_transfer.pool_ring import PoolMember
from kv_transfer.staging import StagingRing
from tests.faults.mortal import MortalTransport, WorkerDied, engine_left_over, peer_info, ring_left_over
from tests.faults.pool_side import PoolSide
from tests.faults.prefill_worker import PrefillWorker


@dataclass(slots=True, eq=False)
class Running:
    """One request on D."""

    request: Request
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
        transport: MortalTransport,
        config: TransferConfig,
        new_link: Callable[[DecodeWorker, PrefillWorker], PeerLink],
        on_exhausted: Callable[[DecodeWorker], None],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.thread = thread
        self.transport = transport
        self.info = peer_info(incarnation, thread.engine.cache, thread.engine.model.fingerprint, transport)
        block_bytes = thread.engine.cache.block_bytes
        self.ring = StagingRing(config, block_bytes, "cpu", lambda _: on_exhausted(self))
        self.is_dead = False
        self.dies_silently = False
        self.skew_s = 0.0
        self.pool: PoolSide | None = None
        self.links: dict[str, PeerLink] = {}
        self._config = config
        self._new_link = new_link
        self._running: dict[str, Running] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order, so that a run can be repeated
        self._loop = asyncio.get_running_loop()
        thread.subscribe(self._on_step)
        thread.start()

    async def generate(
        self, request: Request, source: PrefillWorker | None, ticket: Ticket, deadline: float
    ) -> list[int]:
        """All tokens. Raises HandoffError, or WorkerDied; without a source the prompt is computed here."""

        def receive(running: Running) -> Coroutine[None, None, None]:
            return _nothing() if source is None else self._receive(running, source, ticket, deadline)

        return await self._while_alive(request, receive, deadline)

    async def generate_from_pool(
        self, request: Request, members: Sequence[PoolMember], writes_back: bool, deadline: float
    ) -> tuple[list[int], PoolRead | None]:
        """All tokens, and what was read. Raises HandoffError at the deadline, or WorkerDied."""
        reads: list[PoolRead] = []
        try:
            tokens = await self._while_alive(request, partial(self._read_pool, members=members, reads=reads), deadline)
        finally:
            if writes_back and not self.is_dead and self.pool is not None:
                self.pool.client.writer.write_back(request, members)
        return tokens, reads[0] if reads else None

    def die(self, silently: bool) -> None:
        self.is_dead = True
        self.dies_silently = silently
        self.transport.die(silently)
        self.thread.stop()
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        for link in self.links.values():
            await link.close()

    def now(self) -> float:
        return self._loop.time() + self.skew_s

    def left_over(self) -> list[str]:
        found = engine_left_over(self.thread.engine) + ring_left_over(self.ring, self.transport.num_lost)
        if self._running or self._tasks:
            found.append(f"{len(self._running)} requests, {len(self._tasks)} tasks")
        if self.pool is not None:
            found += self.pool.left_over()
        return [f"{self.incarnation}: {text}" for text in found]

    async def _while_alive(
        self, request: Request, receive: Callable[[Running], Coroutine[None, None, None]], deadline: float
    ) -> list[int]:
        running = Running(request, self._loop.create_future(), self._loop.create_future())
        task = self._loop.create_task(self._generate(running, receive, deadline))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if self.is_dead:
            raise WorkerDied(self.incarnation)
        task.result()
        return running.tokens

    async def _generate(
        self, running: Running, receive: Callable[[Running], Coroutine[None, None, None]], deadline: float
    ) -> None:
        request = running.request
        self._running[request.request_id] = running
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wrap_future(self.thread.call(lambda engine: engine.add(request)))
                await receive(running)
                await running.ended
        except TimeoutError:
            raise HandoffError(FailureReason.DEADLINE, "the request's deadline passed") from None
        finally:
            del self._running[request.request_id]
            self.thread.tell(lambda engine: engine.abort(request.request_id))

    async def _receive(self, running: Running, source: PrefillWorker, ticket: Ticket, deadline: float) -> None:
        request = running.request
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
            running.ended.set_result(None)
            return
        first = result.first_token
        await asyncio.wrap_future(self.thread.call(lambda engine: self._accept(engine, request, running, first)))

    async def _read_pool(self, running: Running, members: Sequence[PoolMember], reads: list[PoolRead]) -> None:
        assert self.pool is not None
        await running.reserved
        read = await self.pool.client.reader.read(running.request, members)
        reads.append(read)
        self.pool.note_read(read)
        request_id, num_tokens = running.request.request_id, read.num_tokens
        await asyncio.wrap_future(self.thread.call(lambda engine: engine.accept_prefix(request_id, num_tokens)))

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


async def _nothing() -> None:
    """The prompt is computed here."""
