"""Who is in the cluster, versioned, for whoever watches.

Each subscriber sees the newest membership at once and after each change; versions in between may be skipped, so a slow
one costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from cluster.fleet_worker import WorkerState
from cluster.roles import RoleName


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a worker that is ready is reached, and by which transports its KV."""

    grpc: str  # host:port
    metrics: str  # host:port
    node: str
    transports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    worker: str
    incarnation: str
    role: RoleName
    state: WorkerState
    addresses: Addresses | None  # None until it is ready
    role_epoch: int = 1
    group: str = ""  # of its pool


@dataclass(frozen=True, slots=True)
class Snapshot:
    version: int
    members: tuple[Member, ...]


class Membership:
    """Maintains the newest snapshot. `version` grows by one with each real change."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, ())
        self._changed = asyncio.Event()

    def publish(self, members: tuple[Member, ...]) -> None:
        if members == self.snapshot.members and self.snapshot.version:
            return
        self.snapshot = Snapshot(self.snapshot.version + 1, members)
        self._changed.set()
        self._changed = asyncio.Event()

    async def subscribe(self) -> AsyncIterator[Snapshot]:
        """The snapshot now, unless nothing was published yet, and then each newer one; it never ends by itself."""
        seen = 0
        while True:
            changed = self._changed
            if self.snapshot.version != seen:
                seen = self.snapshot.version
                yield self.snapshot
            else:
                await changed.wait()
