"""What is asked of a run between real processes, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.faults.plan import Result

NUM_TOKENS = 6
REQUEST_S = 60.0  # its deadline, which the proxy keeps
GRACE_S = 10.0  # an answer that comes later than this after it is a hang
DEADLINES = {
    "handshake_timeout_s": 3.0,
    "open_timeout_s": 5.0,
    "lease_s": 8.0,
    "renew_every_s": 0.5,
    "transfer_timeout_s": 2.0,
    "verdict_timeout_s": 3.0,
    "silent_peer_s": 4.0,
    "pool_lookup_timeout_s": 2.0,
    "pool_avoid_s": 0.5,
}
STAGING = {"staging_slots": 6, "staging_slot_bytes": 4 << 20, "max_quarantined_slots": 5}
NODE_BYTES = 12 << 20  # of each pool node: few blocks, so that it evicts all the time


class Mishap(StrEnum):
    P_KILLED = "P killed"
    D_KILLED = "D killed"
    P_STOPPED = "P stopped for a while"
    D_STOPPED = "D stopped for a while"
    LINK_CUT = "all links to P cut for a while"
    NODE_KILLED = "pool node killed"
    NODE_STOPPED = "pool node stopped for a while"


MISHAPS = (Mishap.P_KILLED, Mishap.D_KILLED, *[Mishap.P_STOPPED, Mishap.D_STOPPED, Mishap.LINK_CUT] * 2)
POOL_MISHAPS = (Mishap.NODE_KILLED, Mishap.NODE_STOPPED) * 2


@dataclass(frozen=True, slots=True)
class RealPlan:
    """Over NIXL every second request goes through two pool nodes, which Gloo has not."""

    seed: str
    num_handoffs: int
    model_dir: Path
    log_dir: Path
    engine: dict[str, Any]
    num_at_once: int = 6
    num_prompts: int = 40
    rate: float = 0.06
    time_scale: float = 1.0  # of deadlines, delays and stops
    ucx_tls: str | None = None
    transport: str = "nixl"

    @property
    def has_pool(self) -> bool:
        return self.transport == "nixl"

    @property
    def mishaps(self) -> tuple[Mishap, ...]:
        return MISHAPS + POOL_MISHAPS if self.has_pool else MISHAPS

    @property
    def kv_transfer(self) -> dict[str, Any]:
        deadlines = {name: self.time_scale * value for name, value in DEADLINES.items()}
        return STAGING | deadlines | {"ucx_tls": self.ucx_tls, "transports": [self.transport]}


@dataclass(slots=True)
class RealResult(Result):
    """`num_found`: the blocks that were looked up in pool nodes and found there."""

    mishaps: Counter[Mishap] = field(default_factory=Counter)
    num_found: int = 0
