"""Chooses each step's work: decodes first, then prompt chunks up to the token budget, first come first served.

Pure Python without a clock, so that a simulator drives the same class. Admission takes all blocks that a request's
known tokens need, or none, so a half-admitted prompt can never wait for another one.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

from engine.batch import Batch, Work
from engine.block_hash import HashContext, extend_hashes
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.request import FinishReason, Request, RequestKind, RequestState
from engine.sampled_token import SampledToken, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenOutput:
    request_id: str
    index: int  # of this token among the generated ones, from 0
    token_id: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    batch: Batch
    reserved: list[Request]  # got their blocks in this step and now wait for a peer's KV
    preempted: list[Request]


def _queue_key(request: Request) -> tuple[int, int, float]:
    """Preempted requests and prompts that a peer already waits for come first, then priority, then arrival."""
    resumes = request.num_preemptions > 0 and request.kind is not RequestKind.PREFILL
    return (0 if resumes or request.pinned else 1, request.priority, request.arrived_at)


class Scheduler:
    """Maintains who waits, runs, receives and is held; each request is in one of the four, until it ends."""

    def __init__(self, config: EngineConfig, pool: BlockPool, hash_context: HashContext) -> None:
        self.config = config
        self.pool = pool
        self.hash_context = hash_context
        self.waiting: list[Request] = []  # ordered by _queue_key
        self.running: list[Request] = []  # oldest admission first
        self.receiving: list[Request] = []
        self.held: list[Request] = []

    def add(self, request: Request) -> None:
        self._hash_new_blocks(request)
        request.state = RequestState.WAITING
        bisect.insort(self.waiting, request, key=_queue_key)

    def pin(self, request: Request) -> None:
        """A peer waits for this prompt: from now on it goes before others and is never preempted."""
        requeue = request.state is RequestState.WAITING
        if requeue:
            self.waiting.remove(request)
        request.pinned = True
        if requeue:
            bisect.insort(self.waiting, request, key=_queue_key)

    def accept(self, request: Request, first_token: SampledToken) -> TokenOutput:
        """The received KV of all its tokens is valid: the request speaks its first token and runs."""
        self.receiving.remove(request)
        request.kind = RequestKind.GENERATE
        request.state = RequestState.RUNNING
        self.running.append(request)
        self._advance(request, request.num_tokens)
        return self._append(request, first_token)

    def remove(self, request: Request) -> None:
        """Ends the request, whatever it does, and lets its blocks go."""
        self._leave(request)
        request.state = RequestState.FINISHED

    def schedule(self) -> Schedule:
        preempted: list[Request] = []
        for request in list(self.running):
            self._grow(request, preempted)
        reserved = [] if preempted else self._admit_waiting(preempted)
        works: list[Work] = []
        budget = self.config.max_num_batched_tokens
        for request in sorted(self.running, key=lambda r: r.num_uncomputed > 1):  # decodes first, else as admitted
            if budget and len(works) < self.config.max_num_seqs and self._has_room(request):
                n = min(request.num_uncomputed, self.config.prefill_chunk_size, budget)
                works.append(Work(request, request.num_computed, n, sample=n == request.num_uncomputed))
                budget -= n
        return Schedule(Batch(tuple(works)), reserved, preempted)

    def update(self, batch: Batch, sampled: Mapping[str, SampledToken]) -> list[TokenOutput]:
        """Takes in what was computed, and each sampled work's next token; nothing of requests that have ended."""
        works = [work for work in batch.works if work.request.state is RequestState.RUNNING]
        for work in works:
            self._advance(work.request, work.end)
        return [self._append(work.request, sampled[work.request.request_id]) for work in works if work.sample]

    def _has_room(self, request: Request) -> bool:
        return len(request.blocks) * self.config.block_size >= request.num_tokens

    def _grow(self, request: Request, preempted: list[Request]) -> None:
        """Makes room for the request's next token, at the cost of younger ones; without room it sits this step out."""
        while request.state is RequestState.RUNNING and not self._has_room(request):
            block = self.pool.allocate(1)
            if block is not None:
                request.blocks += block
            elif not self._preempt_youngest(preempted):
                return

    def _admit_waiting(self, preempted: list[Request]) -> list[Request]:
        """Admits in order, up to the first that finds no room; returns those that now receive."""
        reserved: list[Request] = []
        while self.waiting and len(self.running) + len(self.receiving) < self.config.max_num_seqs:
            request = self.waiting[0]
            if not self._admit(request, preempted):
                break
            if request.state is RequestState.RECEIVING:
                reserved.append(request)
        return reserved

    def _admit(self, request: Request, preempted: list[Request]) -> bool:
        hits = self.pool.lookup(request.block_hashes[: (request.num_tokens - 1) // self.config.block_size])
        self.pool.acquire(hits)
        need = -(-request.num_tokens // self.config.block_size) - len(hits)
        blocks = self._take_blocks(request, need, preempted)
        if blocks is None:
            self.pool.release(hits)
            return False
        self.pool.count_lookup(len(request.block_hashes), len(hits))
        self.waiting.remove(request)
        request.blocks = hits + blocks
        request.num_computed = request.num_cached = len(hits) * self.config.block_size
        if request.kind is RequestKind.RECEIVE:
            request.state = RequestState.RECEIVING
            self.receiving.append(request)
        else:
            request.state = RequestState.RUNNING
            self.running.append(request)
        return True

    def _take_blocks(self, request: Request, n: int, preempted: list[Request]) -> list[int] | None:
        if request.kind is RequestKind.RECEIVE and self.receiving:
            receiving = sum(len(r.blocks) for r in self.receiving)
            if receiving + n > self.config.max_receiving_share * self.pool.num_blocks:
                return None
        while request.pinned and n > self.pool.num_free and self._preempt_unread(preempted):
            pass
        return self.pool.allocate(n) if n + self._headroom(request) <= self.pool.num_free else None

    def _headroom(self, request: Request) -> int:
        """Free blocks to leave, so that those that decode do not preempt the newcomer at once."""
        num_decoding = len(self.running) + len(self.receiving)
        if request.kind is RequestKind.PREFILL or num_decoding == 0:
            return 0
        return self.config.decode_headroom_blocks * (num_decoding + 1)

    def _preempt_youngest(self, preempted: list[Request]) -> bool:
        """Never the oldest: it must end so that everybody gets on."""
        victim = next((r for r in reversed(self.running[1:]) if not r.pinned), None)
        return victim is not None and self._preempt(victim, preempted)

    def _preempt_unread(self, preempted: list[Request]) -> bool:
        """A prompt that nobody opened yet gives way to one that a peer, holding blocks itself, waits for."""
        victim = next((r for r in reversed(self.held + self.running) if not r.pinned), None)
        return victim is not None and self._preempt(victim, preempted)

    def _preempt(self, victim: Request, preempted: list[Request]) -> bool:
        if victim.state is RequestState.HELD:
            victim.token_ids.pop()  # sampled again when the prompt is computed again
            victim.held_token = None
            del victim.block_hashes[victim.num_tokens // self.config.block_size :]
        self._leave(victim)
        victim.num_computed = victim.num_cached = 0
        victim.num_preemptions += 1
        self.add(victim)
        preempted.append(victim)
        return True

    def _leave(self, request: Request) -> None:
        groups = {
            RequestState.WAITING: self.waiting,
            RequestState.RUNNING: self.running,
            RequestState.RECEIVING: self.receiving,
            RequestState.HELD: self.held,
        }
        groups[request.state].remove(request)
        self.pool.release(request.blocks)
        request.blocks = []

    def _advance(self, request: Request, num_computed: int) -> None:
        first = request.num_computed // self.config.block_size
        request.num_computed = num_computed
        self._hash_new_blocks(request)
        for i in range(first, num_computed // self.config.block_size):
            self.pool.publish(request.blocks[i], request.block_hashes[i])

    def _append(self, request: Request, token: SampledToken) -> TokenOutput:
        request.token_ids.append(token.token_id)
        reason = request.finish_reason_at(token.token_id)
        if request.kind is RequestKind.PREFILL:
            self.running.remove(request)
            request.state = RequestState.HELD
            request.held_token = token
            self.held.append(request)
        elif reason is not None:
            self.remove(request)
        return TokenOutput(request.request_id, request.num_generated - 1, token.token_id, reason, token.logprobs)

    def _hash_new_blocks(self, request: Request) -> None:
        request.block_hashes = extend_hashes(
            self.hash_context.with_salt(request.cache_salt), request.token_ids, request.block_hashes
        )
