"""A prefill worker as far as KV goes: a real engine and its leases, without gRPC.

It is one incarnation. A dead one does nothing more; what it held is gone with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from engine.engine import StepResult
from engine.engine_thread import EngineThread
from engine.request import Request
from kv_transfer.config import TransferConfig
from kv_transfer.lease import LeaseTable
from kv_transfer.local_peer import LocalPeer
from kv_transfer.messages import Ticket
from kv_transfer.pool_ring import PoolMember
from kv_transfer.staging import StagingRing
from kv_transfer.two_sided import TwoSidedTransport
from prefill_worker.pooled_prompt import PooledPrompt
from tests.faults.mortal import MortalTransport, WorkerDied, engine_left_over, peer_info, ring_left_over
from tests.faults.pool_side import PoolSide


class PrefillWorker:
    """Maintains its lease table, by a clock that may jump. `dies_silently`: nobody is told of its death."""

    def __init__(
        self,
        name: str,
        incarnation: str,
        thread: EngineThread,
        transport: MortalTransport,
        config: TransferConfig,
        on_exhausted: Callable[[PrefillWorker], None],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.thread = thread
        self.transport = transport
        self.is_dead = False
        self.dies_silently = False
        self.skew_s = 0.0
        self.awake = False
        self.pool: PoolSide | None = None
        self.info = peer_info(incarnation, thread.engine.cache, thread.engine.model.fingerprint, transport)
        block_bytes = thread.engine.cache.block_bytes
        self.ring = StagingRing(config, block_bytes, "cpu", lambda _: on_exhausted(self))
        self.leases = LeaseTable(thread.engine, config, self._keep_awake)
        two_sided = {transport.name: transport} if isinstance(transport, TwoSidedTransport) else None
        self.peer = LocalPeer(self.info, self.leases, thread, self.now, two_sided)
        self._loop = asyncio.get_running_loop()
        self._prompts: dict[PooledPrompt, None] = {}  # in order, so that a run can be repeated
        self._tasks: dict[asyncio.Task[None], None] = {}
        thread.subscribe(self._on_step)
        thread.start()

    async def prefill(self, request: Request, ticket: Ticket) -> None:
        """Raises what the lease table and the engine do."""
        await asyncio.wrap_future(self.thread.call(lambda _: self.leases.prefill(request, ticket, self.now())))

    async def prefill_for_pool(self, request: Request, members: Sequence[PoolMember]) -> None:
        """Returns once the pool has, as far as it takes them, the prompt's full blocks. Raises WorkerDied."""
        task = self._loop.create_task(self._run_pooled(request, members))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if self.is_dead:
            raise WorkerDied(self.incarnation)
        task.result()

    async def abort(self, ticket: Ticket) -> None:
        await asyncio.wrap_future(self.thread.call(lambda _: self.leases.abort(ticket, self.now())))

    def die(self, silently: bool) -> None:
        self.is_dead = True
        self.dies_silently = silently
        self.transport.die(silently)
        self.thread.stop()
        for task in list(self._tasks):
            task.cancel()

    def left_over(self) -> list[str]:
        """What is not at its baseline, long after everything has ended."""
        found = engine_left_over(self.thread.engine) + ring_left_over(self.ring, self.transport.num_lost)
        if self.leases.counts().active:
            found.append(f"{self.leases.counts().active} leases")
        if self.awake:
            found.append("the transport is still kept awake")
        if self._tasks or self._prompts:
            found.append(f"{len(self._tasks)} tasks, {len(self._prompts)} prompts for the pool")
        if self.pool is not None:
            found += self.pool.left_over()
        return [f"{self.incarnation}: {text}" for text in found]

    def now(self) -> float:
        return self._loop.time() + self.skew_s

    async def _run_pooled(self, request: Request, members: Sequence[PoolMember]) -> None:
        assert self.pool is not None
        prompt = PooledPrompt(request, members, self.thread, self.pool.client, self.pool.note_read)
        self._prompts[prompt] = None
        try:
            await prompt.run()
        finally:
            del self._prompts[prompt]

    def _keep_awake(self, awake: bool) -> None:
        self.awake = awake

    def _on_step(self, result: StepResult) -> None:
        """In the engine thread."""
        self._loop.call_soon_threadsafe(self._after_step, result)

    def _after_step(self, result: StepResult) -> None:
        for prompt in self._prompts:
            prompt.on_step(result)
