"""The workers that a drill disturbs: who they are, and their processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from rpc import control_pb2, control_pb2_grpc, worker_pb2

CALL_TIMEOUT_S = 15.0
ROLES = {worker_pb2.ROLE_PREFILL: "prefill", worker_pb2.ROLE_DECODE: "decode", worker_pb2.ROLE_MIXED: "mixed"}


@dataclass(frozen=True, slots=True)
class Target:
    """One incarnation that is ready."""

    name: str
    role: str
    incarnation: str
    pid: int
    metrics_address: str


class Fleet(Protocol):
    """Somebody else replaces the dead. Two implementations: a cluster's controller, and a test's processes."""

    async def ready(self) -> Sequence[Target]:
        """Whoever serves now."""
        ...

    async def died(self, target: Target) -> None:
        """Told after it was killed."""
        ...


class ControlledFleet:
    """The workers of a controller."""

    def __init__(self, control: control_pb2_grpc.ControlStub) -> None:
        self._control = control

    async def ready(self) -> list[Target]:
        try:
            answer = await self._control.ListWorkers(control_pb2.ListWorkersRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return []  # it may be busy for a moment; then nobody is disturbed
        return [
            Target(
                info.member.worker,
                ROLES[info.member.role],
                info.member.incarnation,
                info.pid,
                info.member.metrics_address,
            )
            for info in answer.workers
            if info.member.state == control_pb2.WORKER_READY and info.pid and info.member.role in ROLES
        ]

    async def died(self, target: Target) -> None:
        """The controller sees it by itself."""

    async def scale(self, role: str, num_workers: int) -> None:
        roles = {name: number for number, name in ROLES.items()}
        request = control_pb2.ScaleRequest(role=roles[role], num_workers=num_workers)
        await self._control.Scale(request, timeout=CALL_TIMEOUT_S)
