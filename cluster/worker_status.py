"""What is known of one worker, and asked of it, when somebody looks at the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cluster.launcher import ProcessLost, RunningWorker, WorkerReport
from cluster.membership import Member

DESCRIBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as `ListWorkers` shows it. `report` is None while it does not answer."""

    member: Member
    num_restarts: int
    last_error: str
    report: WorkerReport | None


async def report_of(worker: RunningWorker | None) -> WorkerReport | None:
    """None when it does not run, has no port yet, or does not answer."""
    if worker is None or worker.addresses is None:
        return None
    try:
        async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
            return await worker.describe()
    except (ProcessLost, TimeoutError):
        return None
