"""What D expects of one hand-off, fixed when it starts, and what has been announced of it so far.

Pure: it takes P's events and says which blocks are new, or that P announced something else than this prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.block_hash import HashContext, token_hash
from engine.request import FinishReason, Request
from kv_transfer.messages import BlockRef, ChunkReady, FailureReason, HandoffError, PrefillDone


@dataclass(frozen=True, slots=True)
class Plan:
    """A receiving request as it was when its blocks were reserved. Made in the engine thread."""

    num_tokens: int
    have_tokens: int  # D's own prefix hits, a multiple of the block size
    block_size: int
    blocks: tuple[int, ...]  # of all tokens
    token_hash: bytes
    stop_token_ids: frozenset[int]
    one_token_left: bool  # any first token ends the request
    order: float  # lower goes first, where transfers wait for one another; on the monotonic clock

    @classmethod
    def of(cls, request: Request, context: HashContext, order: float) -> Plan:
        return cls(
            num_tokens=request.num_tokens,
            have_tokens=request.num_computed,
            block_size=context.block_size,
            blocks=tuple(request.blocks),
            token_hash=token_hash(context.with_salt(request.cache_salt), request.token_ids),
            stop_token_ids=request.sampling.stop_token_ids,
            one_token_left=request.num_generated + 1 >= request.sampling.max_tokens,
            order=order,
        )

    @property
    def num_blocks(self) -> int:
        return -(-(self.num_tokens - self.have_tokens) // self.block_size)

    @property
    def destination(self) -> tuple[int, ...]:
        """The blocks to fill, in order."""
        first = self.have_tokens // self.block_size
        return self.blocks[first : first + self.num_blocks]

    def finish_reason(self, first_token: int) -> FinishReason | None:
        """Why the request ends with its first token; None when it goes on."""
        if first_token in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.one_token_left else None


@dataclass(slots=True, eq=False)
class Announcements:
    """Maintains `refs`, P's blocks for [have_tokens, covered_tokens), across streams that broke."""

    plan: Plan
    refs: list[BlockRef] = field(default_factory=list)
    _next_sequence: int = 0
    _position: int = 0  # tokens this stream has announced

    def restart(self) -> None:
        """A new stream: P says everything again, from the first chunk on."""
        self._next_sequence = 0
        self._position = self.plan.have_tokens

    def has_gap_before(self, chunk: ChunkReady) -> bool:
        return chunk.sequence > self._next_sequence

    def take(self, chunk: ChunkReady) -> list[BlockRef]:
        """The blocks that are new. Raises HandoffError when they cannot be those of this prompt."""
        if chunk.sequence < self._next_sequence:
            return []  # said twice
        self._check_range(chunk)
        first = (chunk.start - self.plan.have_tokens) // self.plan.block_size
        num_known = max(0, len(self.refs) - first)
        known, new = chunk.blocks[:num_known], list(chunk.blocks[num_known:])
        if list(known) != self.refs[first : first + len(known)]:
            raise HandoffError(FailureReason.STALE, f"tokens from {chunk.start} on are in other blocks than before")
        self.refs += new
        self._next_sequence += 1
        self._position = chunk.end
        return new

    def check_done(self, done: PrefillDone) -> None:
        """Raises HandoffError unless P computed exactly this prompt."""
        if done.num_tokens != self.plan.num_tokens:
            detail = f"the peer computed {done.num_tokens} tokens, the prompt has {self.plan.num_tokens}"
            raise HandoffError(FailureReason.MISMATCH, detail)
        if done.token_hash != self.plan.token_hash:
            raise HandoffError(FailureReason.MISMATCH, "the peer computed other tokens than this prompt's")

    def check_complete(self) -> None:
        if self._position != self.plan.num_tokens or len(self.refs) != self.plan.num_blocks:
            detail = f"the peer announced {self._position} of {self.plan.num_tokens} tokens"
            raise HandoffError(FailureReason.MISMATCH, detail)

    def _check_range(self, chunk: ChunkReady) -> None:
        size = self.plan.block_size
        fits = chunk.start == self._position <= chunk.end <= self.plan.num_tokens and chunk.start % size == 0
        whole = chunk.end % size == 0 or chunk.end == self.plan.num_tokens
        if not fits or not whole or len(chunk.blocks) != -(-(chunk.end - chunk.start) // size):
            detail = f"[{chunk.start}, {chunk.end}) in {len(chunk.blocks)} blocks cannot follow token {self._position}"
            raise HandoffError(FailureReason.MISMATCH, detail)
