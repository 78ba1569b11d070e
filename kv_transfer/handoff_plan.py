"""What D expects of one hand-off, fixed when it starts, and what has been announced of it so far.

Pure: it takes P's events and says which blocks are new, or that P announced something else than this prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

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
    num_layers: int

    @classmethod
    def of(cls, request: Request, context: HashContext, order: float, num_layers: int) -> Plan:
        return cls(
            num_tokens=request.num_tokens,
            have_tokens=request.num_computed,
            block_size=context.block_size,
            blocks=tuple(request.blocks),
            token_hash=token_hash(context.with_salt(request.cache_salt), request.token_ids),
            stop_token_ids=request.sampling.stop_token_ids,
            one_token_left=request.num_generated + 1 >= request.sampling.max_tokens,
            order=order,
            num_layers=num_layers,
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


@dataclass(frozen=True, slots=True)
class Readable:
    """Layers of neighbouring blocks, which may be read."""

    first: int  # block, counted from the first that D does not have
    blocks: tuple[BlockRef, ...]
    layers: range


@dataclass(slots=True, eq=False)
class Announcements:
    """Maintains `refs`, P's blocks for [have_tokens, covered_tokens), across streams that broke."""

    plan: Plan
    refs: list[BlockRef] = field(default_factory=list)
    _num_layers: list[int] = field(default_factory=list)  # known of each of `refs`, from the first layer on
    _next_sequence: int = 0
    _position: int = 0  # tokens this stream has announced in all layers
    _unfinished: tuple[int, int] | None = None  # of the chunk from there on: its end, and layers announced

    def restart(self) -> None:
        """A new stream: P says everything again, from the first chunk on."""
        self._next_sequence = 0
        self._position = self.plan.have_tokens
        self._unfinished = None

    def has_gap_before(self, chunk: ChunkReady) -> bool:
        return chunk.sequence > self._next_sequence

    def take(self, chunk: ChunkReady) -> list[Readable]:
        """What is new. Raises HandoffError when it cannot be of this prompt."""
        if chunk.sequence < self._next_sequence:
            return []  # said twice
        layers = chunk.layers if chunk.layers is not None else range(self.plan.num_layers)
        self._check_range(chunk)
        self._check_layers(chunk, layers)
        first = (chunk.start - self.plan.have_tokens) // self.plan.block_size
        num_known = max(0, len(self.refs) - first)
        known, new = chunk.blocks[:num_known], chunk.blocks[num_known:]
        if list(known) != self.refs[first : first + len(known)]:
            raise HandoffError(FailureReason.STALE, f"tokens from {chunk.start} on are in other blocks than before")
        self.refs += new
        self._num_layers += [0] * len(new)
        self._next_sequence += 1
        if layers.stop == self.plan.num_layers:
            self._position, self._unfinished = chunk.end, None
        else:
            self._unfinished = chunk.end, layers.stop
        return self._take_layers(first, len(chunk.blocks), layers.stop)

    def check_done(self, done: PrefillDone) -> None:
        """Raises HandoffError unless P computed exactly this prompt."""
        if done.num_tokens != self.plan.num_tokens:
            detail = f"the peer computed {done.num_tokens} tokens, the prompt has {self.plan.num_tokens}"
            raise HandoffError(FailureReason.MISMATCH, detail)
        if done.token_hash != self.plan.token_hash:
            raise HandoffError(FailureReason.MISMATCH, "the peer computed other tokens than this prompt's")

    def check_complete(self) -> None:
        complete = len(self.refs) == self.plan.num_blocks and set(self._num_layers) <= {self.plan.num_layers}
        if self._position != self.plan.num_tokens or not complete:
            detail = f"the peer announced {self._position} of {self.plan.num_tokens} tokens"
            raise HandoffError(FailureReason.MISMATCH, detail)

    def _check_range(self, chunk: ChunkReady) -> None:
        size = self.plan.block_size
        fits = chunk.start == self._position <= chunk.end <= self.plan.num_tokens
        begins = chunk.start % size == 0 or chunk.start == self.plan.num_tokens
        ends = chunk.end % size == 0 or chunk.end == self.plan.num_tokens
        if not (fits and begins and ends) or len(chunk.blocks) != -(-(chunk.end - chunk.start) // size):
            detail = f"[{chunk.start}, {chunk.end}) in {len(chunk.blocks)} blocks cannot follow token {self._position}"
            raise HandoffError(FailureReason.MISMATCH, detail)

    def _check_layers(self, chunk: ChunkReady, layers: range) -> None:
        end, start = self._unfinished or (chunk.end, 0)
        if layers.start != start or not start < layers.stop <= self.plan.num_layers or chunk.end != end:
            detail = f"layers [{layers.start}, {layers.stop}) up to token {chunk.end} cannot follow {start} up to {end}"
            raise HandoffError(FailureReason.MISMATCH, detail)

    def _take_layers(self, first: int, num_blocks: int, num_layers: int) -> list[Readable]:
        """Marks these blocks' layers as known up to `num_layers`; those that were not, in as few pieces as can be."""
        readable = []
        for known, group in groupby(range(first, first + num_blocks), key=self._num_layers.__getitem__):
            blocks = list(group)
            if known < num_layers:
                refs = tuple(self.refs[i] for i in blocks)
                readable.append(Readable(blocks[0], refs, range(known, num_layers)))
        for i in range(first, first + num_blocks):
            self._num_layers[i] = max(self._num_layers[i], num_layers)
        return readable
