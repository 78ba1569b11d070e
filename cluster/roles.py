"""What a process of the cluster is for, by the names that people use and those of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rpc import worker_pb2

WorkerRole = Literal["prefill", "decode", "mixed"]
RoleName = Literal["prefill", "decode", "mixed", "pool"]  # a pool node is started and watched as workers are
ROLE_NAMES: tuple[WorkerRole, ...] = ("prefill", "decode", "mixed")
ROLES: dict[RoleName, worker_pb2.Role] = {
    "prefill": worker_pb2.ROLE_PREFILL,
    "decode": worker_pb2.ROLE_DECODE,
    "mixed": worker_pb2.ROLE_MIXED,
    "pool": worker_pb2.ROLE_POOL,
}


def can_generate(replicas: Mapping[RoleName, int]) -> bool:
    """Whether a cluster of these pools could answer anybody."""
    return replicas["decode"] + replicas["mixed"] > 0
