"""How often pools were changed, in which direction and why: what `scale_events_total` and `role_flips_total` say.

Belongs to the controller's loop. Since the controller's start, like every counter of a process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cluster.roles import RoleName

BY_HAND = "operator"
MIX = "mix"
REASONS = (BY_HAND, "load", "ttft", "tpot", "kv", MIX, "idle")


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    role: RoleName
    direction: str  # up | down
    reason: str  # one of REASONS


@dataclass(slots=True)
class ScaleEvents:
    """Maintains the counts; a change to the size that a pool has already is none."""

    counts: Counter[ScaleEvent] = field(default_factory=Counter)
    num_role_flips: int = 0

    def resized(self, role: RoleName, before: int, after: int, reason: str) -> None:
        if before != after:
            self.counts[ScaleEvent(role, "up" if after > before else "down", reason)] += 1

    def role_changed(self, before: RoleName, after: RoleName, reason: str) -> None:
        """One worker left a pool for another."""
        self.num_role_flips += 1
        self.counts[ScaleEvent(before, "down", reason)] += 1
        self.counts[ScaleEvent(after, "up", reason)] += 1
