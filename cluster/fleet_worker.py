"""One named worker as the fleet knows it, from incarnation to incarnation and from role to role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cluster.backoff import Backoff
from cluster.group_limits import NO_GROUP
from cluster.roles import RoleName


class WorkerState(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # leaves: finishes what runs, takes nothing new
    WAITING = "waiting"  # dead, or without a machine; started again at `retry_at`
    FAILED = "failed"  # dead at start too often; started again only when its pool is scaled anew


@dataclass(slots=True)
class FleetWorker:
    """One named worker. Changed by `Fleet` alone."""

    name: str
    role: RoleName
    incarnation: str
    state: WorkerState
    started_at: float
    backoff: Backoff
    num_restarts: int = 0  # after a death, so that a change of its role is none
    failed_starts: int = 0  # in a row
    retry_at: float = 0.0
    last_error: str = ""
    comes_back: bool = False  # drains, then is started again in its own place: broken, or in another role
    role_epoch: int = 1  # grows with each change of its role
    next_role: RoleName | None = None  # that it will have when it has drained
    group: str = NO_GROUP  # of its pool
    next_group: str = NO_GROUP  # of the pool of `next_role`

    @property
    def counts_for(self) -> RoleName:
        """Whose pool it is a part of."""
        return self.next_role or self.role

    @property
    def counts_in(self) -> str:
        """Which group of that pool it is a part of."""
        return self.group if self.next_role is None else self.next_group

    @property
    def index(self) -> int:
        """The number in its name."""
        return int(self.name.rsplit("-", 1)[1])
