"""A prompt in pooled mode: what the pool has is read, what it lacks is computed, and that is offered to the pool.

Whole blocks only: the tokens after them, one at least, are left to the decode worker, which samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.engine import StepResult
from engine.engine_thread import EngineThread
from engine.request import Request, RequestState, SamplingParams
from kv_transfer.pool_client import PoolClient
from kv_transfer.pool_reader import PoolRead
from kv_transfer.pool_ring import PoolMember


@dataclass(frozen=True, slots=True)
class PooledPrefill:
    """Of the prompt's full blocks, in tokens. They are in the pool, as far as it took them in time."""

    cached_tokens: int  # found here or in the pool
    computed_tokens: int


class PooledPrompt:
    """One use: `run`, which may be cancelled at any point. `on_step` is called on the loop after each step."""

    def __init__(
        self,
        request: Request,
        members: Sequence[PoolMember],
        engine: EngineThread,
        pool: PoolClient,
        on_read: Callable[[PoolRead], None],
    ) -> None:
        """`request` is cut down to its full blocks, and to what they need."""
        self._block_size = engine.engine.config.block_size
        num_tokens = request.num_tokens // self._block_size * self._block_size
        del request.token_ids[num_tokens:]
        request.num_prompt = num_tokens
        request.sampling = SamplingParams(max_tokens=1)
        request.awaits_kv = True
        self._request = request
        self._members = members
        self._engine = engine
        self._pool = pool
        self._on_read = on_read
        self._reserved = asyncio.Event()
        self._stepped = asyncio.Event()
        self._num_offered = 0  # blocks, those that are not offered because the pool had them included
        self._offers: list[asyncio.Task[None]] = []

    async def run(self) -> PooledPrefill:
        """Raises what `Engine.add` does, and EngineStopped."""
        request = self._request
        if not request.num_tokens:
            return PooledPrefill(0, 0)
        try:
            await asyncio.wrap_future(self._engine.call(lambda engine: engine.add(request)))
            await self._reserved.wait()
            read = await self._pool.reader.read(request, self._members)
            self._on_read(read)
            await asyncio.wrap_future(
                self._engine.call(lambda engine: engine.accept_prefix(request.request_id, read.num_tokens))
            )
            self._offer(request.num_cached // self._block_size)
            self._num_offered = read.num_tokens // self._block_size
            await self._compute()
        finally:
            self._engine.tell(lambda engine: engine.abort(request.request_id))
        if self._offers:
            await asyncio.wait(self._offers)  # each has its deadline
        return PooledPrefill(read.num_tokens, request.num_prompt - read.num_tokens)

    def on_step(self, result: StepResult) -> None:
        if self._request in result.reserved:
            self._reserved.set()
        self._stepped.set()

    async def _compute(self) -> None:
        """Until the last block is computed; offers each block as soon as it is."""
        is_over = False
        while not is_over:
            await self._stepped.wait()
            self._stepped.clear()
            is_over = self._request.state is RequestState.HELD
            self._offer(self._request.num_computed // self._block_size)

    def _offer(self, end: int) -> None:
        """The blocks up to there that have not been offered yet."""
        keys = self._request.block_hashes[self._num_offered : end]
        if keys:
            self._offers.append(self._pool.writer.offer(keys, self._members))
            self._num_offered = end
