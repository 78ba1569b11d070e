"""Published blocks of a worker's prefix cache, leased so that pool nodes may pull them, and the verdict on each pull.

Pure and synchronous, time is an argument; it belongs to the engine thread, as `LeaseTable` does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.block_pool import BlockPool
from kv_transfer.messages import BlockRef, Ticket

SESSION_BYTES = 16


@dataclass(frozen=True, slots=True)
class BlockOffer:
    """What a pool node is told: pass it to `PoolNode.offer`. May be shared out among several nodes."""

    ticket: Ticket
    keys: tuple[bytes, ...]
    refs: tuple[BlockRef, ...]  # of the same places
    expires_at: float


class BlockOffers:
    """Maintains: an offered block keeps its content until its offer is closed or has run out.

    At most `max_share` of all blocks are leased so, however slow the pool is; the engine gets the others. `on_awake`
    hears whether a node may be reading, as in `LeaseTable`: false only `lease_s` after an offer that ended.
    """

    def __init__(
        self, pool: BlockPool, lease_s: float, on_awake: Callable[[bool], None], max_share: float = 0.25
    ) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._on_awake = on_awake
        self._max_blocks = int(pool.num_blocks * max_share)
        self._offers: dict[Ticket, BlockOffer] = {}
        self._awake = False
        self._awake_until = -math.inf

    @property
    def max_blocks(self) -> int:
        """That all offers together may lease."""
        return self._max_blocks

    @property
    def num_blocks(self) -> int:
        """Leased by offers; a block that two of them have counts twice."""
        return sum(len(offer.refs) for offer in self._offers.values())

    def offer(self, keys: Sequence[bytes], now: float) -> BlockOffer | None:
        """A lease on those of `keys` that the prefix cache has and that there is room for. None when that is none."""
        blocks = {key: block for key in keys for block in self._pool.lookup([key])}
        kept = list(blocks)[: max(0, self._max_blocks - self.num_blocks)]
        if not kept:
            return None
        leased = [blocks[key] for key in kept]
        self._pool.acquire(leased)
        self._pool.lease(leased)
        self._pool.release(leased)
        refs = tuple(BlockRef(block, self._pool.generation(block)) for block in leased)
        offer = BlockOffer(Ticket(os.urandom(SESSION_BYTES), attempt=1), tuple(kept), refs, now + self._lease_s)
        self._offers[offer.ticket] = offer
        self._update_awake(now)
        return offer

    def commit(self, ticket: Ticket, refs: Sequence[BlockRef], now: float) -> list[bool]:
        """Whether each block was the offered one for as long as the offer lasts, which is so until it is closed."""
        offer = self._offers.get(ticket)
        if offer is None or now >= offer.expires_at:
            return [False] * len(refs)
        offered = set(offer.refs)
        return [ref in offered and self._pool.generation(ref.block) == ref.generation for ref in refs]

    def close(self, ticket: Ticket, now: float) -> None:
        """The nodes have answered, or their time is up. Idempotent."""
        offer = self._offers.pop(ticket, None)
        if offer is not None:
            self._pool.unlease([ref.block for ref in offer.refs])
            self._awake_until = now + self._lease_s
        self._update_awake(now)

    def advance(self, now: float) -> None:
        """After each step and tick: ends what has run out."""
        for ticket in [offer.ticket for offer in self._offers.values() if offer.expires_at <= now]:
            self.close(ticket, now)
        self._update_awake(now)

    def _update_awake(self, now: float) -> None:
        awake = bool(self._offers) or now < self._awake_until
        if awake != self._awake:
            self._awake = awake
            self._on_awake(awake)
