"""One session on P's side: the prompt, who listens, and exactly which blocks are leased because they were announced.

Belongs to the engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from engine.block_hash import token_hash
from engine.block_pool import BlockPool
from engine.engine import Engine
from engine.request import Request, RequestState
from kv_transfer.messages import (
    BlockRef,
    ChunkReady,
    FailureReason,
    PrefillDone,
    SessionEnded,
    SessionEvent,
    Ticket,
)

Listener: TypeAlias = Callable[[SessionEvent], None]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prefill request and what was true of it before its first token was sampled."""

    request: Request
    num_tokens: int
    token_hash: bytes

    @classmethod
    def of(cls, request: Request, engine: Engine) -> Prompt:
        context = engine.hash_context.with_salt(request.cache_salt)
        return cls(request, request.num_tokens, token_hash(context, request.token_ids))


@dataclass(frozen=True, slots=True)
class LastChunk:
    """The end of a prompt, of which the first `num_layers` layers are announced, while the others are computed."""

    start: int  # token
    blocks: tuple[BlockRef, ...]
    num_layers: int


@dataclass(slots=True, eq=False)
class Session:
    """One attempt. Until it is opened its blocks are ordinary cache and nothing is announced."""

    ticket: Ticket
    pool: BlockPool
    block_size: int
    num_layers: int
    prompt: Prompt | None = None  # None: the Open came before its Prefill
    listener: Listener | None = None  # None: not opened
    opened_at: float | None = None  # for the first time
    have_tokens: int = 0
    announced: list[BlockRef] = field(default_factory=list)  # leased; from have_tokens on, without gaps
    done_sent: bool = False
    layers_sent: bool = False  # some of the last chunk's, in this stream or one before
    expires_at: float = math.inf
    _next_sequence: int = 0
    _written: tuple[int, int] = (0, 0)  # `num_computed` when the step that ends the prompt began; layers written since
    _last_chunk: LastChunk | None = None

    @property
    def opened(self) -> bool:
        return self.listener is not None

    @property
    def state(self) -> RequestState | None:
        """Of the prefill; None before it came."""
        return self.prompt.request.state if self.prompt is not None else None

    def start(self, prompt: Prompt) -> None:
        """The prompt has been queued."""
        self.prompt = prompt

    def extend(self, until: float) -> None:
        self.expires_at = until

    def shorten(self, until: float) -> None:
        """Unless it ends earlier anyway."""
        self.expires_at = min(self.expires_at, until)

    def listen(self, listener: Listener, have_tokens: int, now: float) -> None:
        """From here on `announce` says everything once more, to `listener`. Who listened so far hears no more."""
        if self.listener is not None:
            self.listener(SessionEnded(FailureReason.SUPERSEDED, f"session {self.ticket} was opened again"))
        self.let_go()
        if self.opened_at is None:
            self.opened_at = now
        self.listener, self.have_tokens = listener, have_tokens
        self.done_sent, self._next_sequence, self._last_chunk = False, 0, None

    def write_layers(self, start: int, num_layers: int) -> None:
        """The step that computes the prompt from token `start` to its end has written so many layers."""
        self._written = start, num_layers

    def forget_layers(self) -> None:
        """The step may be over."""
        self._written = 0, 0

    def announce(self) -> None:
        """Every full block that is computed, once; then the last chunk's layers; then the rest and the first token."""
        if self.prompt is None or self.listener is None or self.done_sent:
            return
        request = self.prompt.request
        start = self.have_tokens + len(self.announced) * self.block_size
        end = min(request.num_computed, self.prompt.num_tokens) // self.block_size * self.block_size
        if end > start:
            self.listener(self._chunk(request, start, end))
            start = end
        written_from, num_written = self._written
        if request.state is RequestState.RUNNING and request.num_computed == written_from and num_written:
            self._announce_layers(self.prompt, start, num_written, self.listener)
        if request.state is RequestState.HELD:
            tail = self._tail(self.prompt, start)
            first_token = request.held_token
            assert first_token is not None
            self.done_sent = True
            self.listener(
                PrefillDone(tail, first_token, self.prompt.token_hash, self.prompt.num_tokens, request.num_cached)
            )

    def let_go(self) -> None:
        """Ends the lease on all that was announced."""
        self.pool.unlease([ref.block for ref in self.announced])
        self.announced = []

    def holds_what_it_announced(self) -> bool:
        return all(self.pool.generation(ref.block) == ref.generation for ref in self.announced)

    def _announce_layers(self, prompt: Prompt, start: int, num_layers: int, listener: Listener) -> None:
        last = self._last_chunk
        if last is None and start < prompt.num_tokens:
            last = LastChunk(start, self._lease(prompt.request, start, prompt.num_tokens), 0)
        if last is not None and num_layers > last.num_layers:
            layers = range(last.num_layers, num_layers)
            self._last_chunk, self.layers_sent = replace(last, num_layers=num_layers), True
            listener(self._numbered(last.start, prompt.num_tokens, last.blocks, layers))

    def _tail(self, prompt: Prompt, start: int) -> ChunkReady:
        """All that is not announced."""
        last = self._last_chunk
        if last is None:
            return self._chunk(prompt.request, start, prompt.num_tokens)
        if last.num_layers == self.num_layers:
            return self._numbered(prompt.num_tokens, prompt.num_tokens, ())
        layers = range(last.num_layers, self.num_layers)
        return self._numbered(last.start, prompt.num_tokens, last.blocks, layers)

    def _chunk(self, request: Request, start: int, end: int) -> ChunkReady:
        return self._numbered(start, end, self._lease(request, start, end))

    def _lease(self, request: Request, start: int, end: int) -> tuple[BlockRef, ...]:
        blocks = request.blocks[start // self.block_size : -(-end // self.block_size)]
        refs = tuple(BlockRef(block, self.pool.generation(block)) for block in blocks)
        self.pool.lease(blocks)
        self.announced += refs
        return refs

    def _numbered(self, start: int, end: int, blocks: tuple[BlockRef, ...], layers: range | None = None) -> ChunkReady:
        chunk = ChunkReady(self._next_sequence, start, end, blocks, layers)
        self._next_sequence += 1
        return chunk
