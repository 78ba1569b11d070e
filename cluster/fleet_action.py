"""What a plan of the fleet asks for: one process to start, or one to take out."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.group_limits import NO_GROUP
from cluster.roles import RoleName


@dataclass(frozen=True, slots=True)
class Start:
    name: str
    role: RoleName
    incarnation: str
    num_restarts: int
    role_epoch: int = 1
    group: str = NO_GROUP


@dataclass(frozen=True, slots=True)
class Retire:
    """Drain it, then stop it. A worker that never became ready is just stopped."""

    name: str
    incarnation: str
    was_ready: bool


Action = Start | Retire
