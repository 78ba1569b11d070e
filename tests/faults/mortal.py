"""What all workers and pool nodes of a round share: they introduce themselves, may die, and leave nothing over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from engine.engine import Engine
from engine.kv_cache import KVCache
from engine.request import Request, RequestKind, SamplingParams
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from kv_transfer.staging import StagingRing
from kv_transfer.transport import Transport


class WorkerDied(Exception):
    """Whatever was running there ended without a word."""


class MortalTransport(Transport, Protocol):
    """`num_lost`: the reads that will never end."""

    num_lost: int

    def die(self, silently: bool) -> None:
        """With its process: its memory is no more. Unless silently, others may see their connections break."""
        ...

    async def end(self) -> None:
        """Closes it without blocking the loop."""
        ...


class Mortal(Protocol):
    """One incarnation of a worker or a pool node."""

    name: str
    incarnation: str
    is_dead: bool
    dies_silently: bool
    skew_s: float  # by which its clock has jumped

    def die(self, silently: bool) -> None: ...


def peer_info(incarnation: str, cache: KVCache, fingerprint: str, transport: Transport) -> PeerInfo:
    layout = cache.layout
    compatibility = Compatibility(
        protocol_version=1,
        model_fingerprint=fingerprint,
        kv_dtype=layout.dtype,
        block_size=layout.block_size,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
    )
    return PeerInfo(incarnation, compatibility, (TransportInfo(transport.name, transport.metadata()),))


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


def engine_left_over(engine: Engine) -> list[str]:
    engine.check_integrity()
    counts = engine.pool.counts()
    found = [f"blocks: {counts}"] if counts.used or counts.leased else []
    return [*found, f"requests: {sorted(engine.requests)[:5]}"] if engine.requests else found


def ring_left_over(ring: StagingRing, num_lost: int) -> list[str]:
    counts = ring.counts()
    found = []
    if counts.busy or counts.quarantined != num_lost:
        found.append(f"slots: {counts}, {num_lost} reads never ended")
    return [*found, f"{ring.num_waiting} wait for a slot"] if ring.num_waiting else found
