"""Chooses each step's work: one loop for every strategy, under a token budget, by priority and arrival.

Pure Python without a clock, so that a simulator drives the same class. Admission takes all blocks that a request's
known tokens need, or none, so a half-admitted prompt can never wait for another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.batch import Batch
from engine.batch_composer import BatchComposer
from engine.block_hash import HashContext, extend_hashes
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.request import FinishReason, Request, RequestKind, RequestState
from engine.sampled_token import SampledToken, TokenLogprobs
from engine.scheduling import STRATEGIES, Joins
from engine.swapping import Swap, Swapping
from engine.waiting_queue import Lane, WaitingQueue


@dataclass(frozen=True, slots=True)
class TokenOutput:
    request_id: str
    index: int  # of this token among the generated ones, from 0
    token_id: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    request: Request
    swapped: bool  # to host memory; else it is computed again


@dataclass(slots=True)
class Schedule:
    """Made up while a step is planned, final when `Scheduler.schedule` returns it."""

    batch: Batch = field(default_factory=lambda: Batch(()))
    swaps: list[Swap] = field(default_factory=list)  # to be copied in this order, before the batch is computed
    admitted: list[Request] = field(default_factory=list)  # for the first time
    reserved: list[Request] = field(default_factory=list)  # got their blocks and now wait for a peer's KV
    preempted: list[Preemption] = field(default_factory=list)


class Scheduler:
    """Maintains who waits, runs, receives and is held; each request is in one of the four, until it ends."""

    def __init__(self, config: EngineConfig, pool: BlockPool, hash_context: HashContext) -> None:
        self.config = config.scheduling
        self.strategy = STRATEGIES[self.config.strategy]
        self.pool = pool
        self.hash_context = hash_context
        self.swapping = Swapping(self.config.preemption, self.config.num_swap_blocks, config.block_size)
        self.waiting = WaitingQueue(self.config.priority_ageing_s, self.config.long_prefill_token_threshold)
        self.running: dict[Request, None] = {}  # in the order of their admission, as the next two
        self.receiving: dict[Request, None] = {}
        self.held: dict[Request, None] = {}
        self._plan = Schedule()
        self._composer = BatchComposer(self.config, self.waiting, config.block_size)
        self._block_size = config.block_size

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.waiting.num_uncomputed_tokens + sum(r.num_uncomputed for r in self.running)

    def add(self, request: Request) -> None:
        self._hash_new_blocks(request)
        request.state = RequestState.WAITING
        self.waiting.add(request)

    def pin(self, request: Request) -> None:
        """A peer waits for this prompt: from now on it goes before others and is never preempted."""
        requeue = request.state is RequestState.WAITING
        if requeue:
            self.waiting.remove(request)
        request.pinned = True
        if requeue:
            self.waiting.add(request)

    def accept(self, request: Request, first_token: SampledToken) -> TokenOutput:
        """The received KV of all its tokens is valid: the request speaks its first token and runs."""
        self.accept_prefix(request, request.num_tokens)
        return self._append(request, first_token)

    def accept_prefix(self, request: Request, num_tokens: int) -> None:
        """The KV of its first tokens is valid, perhaps of no more than it had: it runs, and the rest is computed."""
        del self.receiving[request]
        request.awaits_kv = False
        request.state = RequestState.RUNNING
        self.running[request] = None
        self._advance(request, num_tokens)

    def remove(self, request: Request) -> None:
        """Ends the request, whatever it does, and lets its blocks go."""
        self._leave(request)
        self.swapping.drop(request)
        request.state = RequestState.FINISHED

    def schedule(self) -> Schedule:
        """Room for the next tokens of those that run; then, if that was there, newcomers; then who computes what."""
        plan = self._plan = Schedule()
        for request in list(self.running):
            if len(request.blocks) * self._block_size < len(request.token_ids):
                self._grow(request)
        if not plan.preempted:
            self._admit_waiting()
        plan.batch = self._composer.compose(self.running)
        return plan

    def update(self, batch: Batch, sampled: Mapping[str, SampledToken]) -> list[TokenOutput]:
        """Takes in what was computed, and each sampled work's next token; nothing of requests that have ended."""
        works = [work for work in batch.works if work.request.state is RequestState.RUNNING]
        for work in works:
            self._advance(work.request, work.end)
        return [self._append(work.request, sampled[work.request.request_id]) for work in works if work.sample]

    def _admit_waiting(self) -> None:
        """Admits in order, up to the first that finds no room."""
        lanes = self._open_lanes() if self.waiting else set()
        while (request := self.waiting.first(lanes)) is not None:
            lane = self.waiting.lane(request)
            if not self._has_place(request) or not self._admit(request):
                return
            if lane is Lane.LONG and self._num_long_prompts() >= self.config.max_long_partial_prefills:
                lanes.discard(lane)

    def _open_lanes(self) -> set[Lane]:
        """What the strategy leaves open, and the long prompts that run."""
        joins = self.strategy.joins
        if joins is Joins.BETWEEN_BATCHES and self.running:
            return {Lane.COMPUTED}
        if joins is Joins.BETWEEN_DECODES and any(request.num_uncomputed == 1 for request in self.running):
            return {Lane.COMPUTED}
        if self._num_long_prompts() >= self.config.max_long_partial_prefills:
            return {Lane.COMPUTED, Lane.SHORT}
        return set(Lane)

    def _num_long_prompts(self) -> int:
        return sum(request.num_uncomputed > 1 and self.waiting.is_long(request) for request in self.running)

    def _has_place(self, request: Request) -> bool:
        """Whether one more may run, perhaps instead of one of a worse priority."""
        is_full = len(self.running) + len(self.receiving) >= self.config.max_num_seqs
        return not is_full or self._make_way(request, num_places=1)

    def _admit(self, request: Request) -> bool:
        hits = self.pool.lookup(request.block_hashes[: (request.num_tokens - 1) // self._block_size])
        self.pool.acquire(hits)
        blocks = self._take_blocks(request, self._num_blocks(request.num_tokens) - len(hits))
        if blocks is None:
            self.pool.release(hits)
            return False
        self.pool.count_lookup(len(request.block_hashes), len(hits))
        self.waiting.remove(request)
        request.blocks = hits + blocks
        request.num_computed = max(request.num_computed, len(hits) * self._block_size)
        if request.num_preemptions == 0:
            request.num_cached = request.num_computed
            self._plan.admitted.append(request)
        if request.swapped:
            self._plan.swaps += self.swapping.bring_back(request, len(hits))
            self._publish(request, len(hits))
        if request.awaits_kv:
            request.state = RequestState.RECEIVING
            self.receiving[request] = None
            self._plan.reserved.append(request)
        else:
            request.state = RequestState.RUNNING
            self.running[request] = None
        return True

    def _take_blocks(self, request: Request, n: int) -> list[int] | None:
        if request.awaits_kv and self.receiving:
            receiving = sum(len(r.blocks) for r in self.receiving)
            if receiving + n > self.config.max_receiving_share * self.pool.num_blocks:
                return None
        while request.pinned and n > self.pool.num_free and self._preempt_unread():
            pass
        num_wanted = n + self._headroom(request)
        if num_wanted > self.pool.num_free and not self._make_way(request, num_blocks=num_wanted):
            return None
        return self.pool.allocate(n)

    def _headroom(self, request: Request) -> int:
        """Free blocks to leave, so that those that decode do not preempt the newcomer at once."""
        num_decoding = len(self.running) + len(self.receiving)
        if request.kind is RequestKind.PREFILL or num_decoding == 0:
            return 0
        return self.config.decode_headroom_blocks * (num_decoding + 1)

    def _grow(self, request: Request) -> None:
        """Makes room for the request's next token, at the cost of others; without room it sits this step out."""
        while request.state is RequestState.RUNNING and len(request.blocks) < self._num_blocks(request.num_tokens):
            block = self.pool.allocate(1)
            if block is not None:
                request.blocks += block
            elif not self._preempt_last():
                return

    def _preempt_last(self) -> bool:
        """Never the first in order: it must end so that everybody gets on."""
        first = min(self.running, key=self.waiting.order)
        others = [request for request in self.running if not request.pinned and request is not first]
        return self._preempt(others)

    def _preempt_unread(self) -> bool:
        """A prompt that nobody opened yet gives way to one that a peer, holding blocks itself, waits for."""
        return self._preempt([request for request in (*self.held, *self.running) if not request.pinned])

    def _make_way(self, newcomer: Request, num_places: int = 0, num_blocks: int = 0) -> bool:
        """Requests of a worse priority give way to the newcomer, each once in its life, when that is enough."""
        worse = [request for request in self.running if self._gives_way(request, newcomer)]
        if len(worse) < num_places or self.pool.num_free + sum(len(r.blocks) for r in worse) < num_blocks:
            return False
        while worse and (num_places > 0 or self.pool.num_free < num_blocks):
            self._preempt(worse)
            worse = [request for request in worse if request.state is RequestState.RUNNING]
            num_places -= 1
        return num_places <= 0 and self.pool.num_free >= num_blocks

    def _gives_way(self, request: Request, newcomer: Request) -> bool:
        has_waited = self.waiting.order(request) <= self.waiting.order(newcomer)
        is_worse = request.priority > newcomer.priority and not has_waited
        return is_worse and not request.pinned and request.num_preemptions == 0

    def _preempt(self, candidates: Sequence[Request]) -> bool:
        """The last of them, in order, goes back to the queue; False when there is none."""
        victim = max(candidates, key=self.waiting.order, default=None)
        if victim is None:
            return False
        if victim.state is RequestState.HELD:
            victim.token_ids.pop()  # sampled again when the prompt is computed again
            victim.held_token = None
            del victim.block_hashes[victim.num_tokens // self._block_size :]
        self._plan.swaps += self.swapping.take_out(victim)
        self._leave(victim)
        if not victim.swapped:
            victim.num_computed = 0
        victim.num_preemptions += 1
        self.add(victim)
        self._plan.preempted.append(Preemption(victim, bool(victim.swapped)))
        return True

    def _leave(self, request: Request) -> None:
        match request.state:
            case RequestState.WAITING:
                self.waiting.remove(request)
            case RequestState.RUNNING:
                del self.running[request]
            case RequestState.RECEIVING:
                del self.receiving[request]
            case RequestState.HELD:
                del self.held[request]
        self.pool.release(request.blocks)
        request.blocks = []

    def _advance(self, request: Request, num_computed: int) -> None:
        first = request.num_computed // self._block_size
        request.num_computed = num_computed
        if num_computed // self._block_size > first:
            self._hash_new_blocks(request)
            self._publish(request, first)

    def _publish(self, request: Request, first: int) -> None:
        """The full blocks from `first` on, of what is computed."""
        for i in range(first, request.num_computed // self._block_size):
            self.pool.publish(request.blocks[i], request.block_hashes[i])

    def _append(self, request: Request, token: SampledToken) -> TokenOutput:
        request.token_ids.append(token.token_id)
        reason = request.finish_reason_at(token.token_id)
        if request.kind is RequestKind.PREFILL:
            del self.running[request]
            request.state = RequestState.HELD
            request.held_token = token
            self.held[request] = None
        elif reason is not None:
            self.remove(request)
        index = len(request.token_ids) - request.num_prompt - 1
        return TokenOutput(request.request_id, index, token.token_id, reason, token.logprobs)

    def _hash_new_blocks(self, request: Request) -> None:
        if len(request.block_hashes) < request.num_tokens // self._block_size:
            context = self.hash_context.with_salt(request.cache_salt)
            request.block_hashes = extend_hashes(context, request.token_ids, request.block_hashes)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
