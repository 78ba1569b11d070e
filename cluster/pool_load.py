"""How busy the workers of one role are, all together: what a program looks at before it scales. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.fleet_worker import WorkerState
from cluster.roles import ROLES, RoleName
from cluster.worker_status import WorkerStatus
from rpc import control_pb2


def pool_load(role: RoleName, num_desired: int, statuses: Sequence[WorkerStatus]) -> control_pb2.PoolLoad:
    """Of those that are ready; the load of one that does not answer is unknown."""
    ready = [s for s in statuses if s.member.role == role and s.member.state is WorkerState.READY]
    loads = [status.report.load for status in ready if status.report is not None]
    num_blocks = sum(load.num_blocks for load in loads)
    num_free = sum(load.num_free_blocks for load in loads)
    return control_pb2.PoolLoad(
        role=ROLES[role],
        num_desired=num_desired,
        num_ready=len(ready),
        num_reporting=len(loads),
        num_running=sum(load.num_running for load in loads),
        num_waiting=sum(load.num_waiting for load in loads),
        num_queued_tokens=sum(load.num_queued_tokens for load in loads),
        kv_usage=1 - num_free / num_blocks if num_blocks else 0.0,
    )
