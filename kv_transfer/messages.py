"""What P and D say to each other about one hand-off, as frozen values; `proto/peer.proto` carries the same fields.

A session is one prompt's way from one P to one D. The proxy numbers its attempts; a higher one ends the lower.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypeAlias

from engine.sampled_token import SampledToken


class FailureReason(StrEnum):
    """Why a hand-off ended without valid KV. The bounded label of the failure metrics."""

    INCOMPATIBLE = "incompatible"  # the two could not share KV; the detail names the field
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    RESERVE_TIMEOUT = "reserve_timeout"  # no KV blocks on D in time
    STAGING_TIMEOUT = "staging_timeout"  # no staging slot in time
    PEER_UNAVAILABLE = "peer_unavailable"  # another incarnation serves there, or the call was refused
    PEER_SILENT = "peer_silent"
    GONE = "gone"  # P no longer knows the session, or never held it long enough
    ABORTED = "aborted"
    SUPERSEDED = "superseded"  # a higher attempt, or a later Open, took its place
    LEASE_EXPIRED = "lease_expired"
    PREFILL_FAILED = "prefill_failed"
    TRANSFER_FAILED = "transfer_failed"
    TRANSFER_TIMEOUT = "transfer_timeout"
    VERDICT_TIMEOUT = "verdict_timeout"
    STALE = "stale"  # P no longer holds what was read
    MISMATCH = "mismatch"  # P announced something else than this prompt
    DEADLINE = "deadline"  # the request's own
    INTERNAL = "internal"


class HandoffError(Exception):
    """The hand-off is over and D holds nothing that may be used."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Verdict(StrEnum):
    VALID = "valid"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Ticket:
    session: bytes  # 16 random bytes
    attempt: int

    def __str__(self) -> str:
        return f"{self.session.hex()[:8]}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class BlockRef:
    """One block of P's cache, and which of its lives is meant."""

    block: int
    generation: int


@dataclass(frozen=True, slots=True)
class ChunkReady:
    """These blocks hold the KV of tokens [start, end), in these layers, and are never written again there under these
    generations. A chunk that leaves layers out is followed by the same tokens' next layers."""

    sequence: int  # from 0 in each stream, without gaps
    start: int
    end: int
    blocks: tuple[BlockRef, ...]
    layers: range | None = None  # None: all


@dataclass(frozen=True, slots=True)
class PrefillDone:
    tail: ChunkReady  # the partial last block; no blocks when there is none
    first_token: SampledToken
    token_hash: bytes  # chained, over all `num_tokens`
    num_tokens: int
    cached_tokens: int  # found in P's prefix cache


@dataclass(frozen=True, slots=True)
class SessionEnded:
    reason: FailureReason
    detail: str


SessionEvent: TypeAlias = ChunkReady | PrefillDone | SessionEnded


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What must be equal for one worker to use KV that another computed."""

    protocol_version: int
    model_fingerprint: str
    kv_dtype: str
    block_size: int  # tokens
    num_layers: int
    num_kv_heads: int
    head_dim: int
    tensor_parallel_size: int = 1

    @classmethod
    def read_from(cls, source: object) -> Compatibility:
        """From an object with attributes of the same names, such as a protobuf message."""
        return cls(**{field.name: getattr(source, field.name) for field in fields(cls)})

    def mismatch(self, other: Compatibility) -> str | None:
        """The first field that differs, with both values; None when there is none."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                return f"{field.name} is {mine} here and {theirs} on the peer"
        return None


@dataclass(frozen=True, slots=True)
class TransportInfo:
    name: str
    metadata: bytes  # what `Transport.connect` of the other side needs


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One start of one worker, as it introduces itself."""

    incarnation: str
    compatibility: Compatibility
    transports: tuple[TransportInfo, ...] = ()
