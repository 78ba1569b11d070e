"""The Ray actor that keeps the proxy's process running; the proxy itself knows nothing of Ray.

When this actor dies its child dies with it, and the controller starts another actor.
"""

from __future__ import annotations

import asyncio

from cluster.actor_process import log_file, log_to
from cluster.child_process import ChildProcess
from cluster.launcher import ProxyReport
from cluster.spec import ProxySpec, RestartSpec


class ProxyRunner:
    """Maintains one `ChildProcess`, the proxy."""

    def __init__(self, spec: ProxySpec, restart: RestartSpec, log_dir: str) -> None:
        log_to(log_file(log_dir, "proxy"), spec.logs)
        self._spec = spec
        self._child = ChildProcess("proxy", spec.command, restart)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Idempotent. Returns at once: a proxy that is up is seen by who calls it."""
        if self._task is None:
            self._task = asyncio.create_task(self._child.run())

    async def describe(self) -> ProxyReport:
        child = self._child
        return ProxyReport(child.pid, max(0, child.num_starts - 1), child.last_error)

    async def watch(self) -> str:
        """Returns only when the proxy is no longer kept running."""
        if self._task is None:
            return "the proxy was never started"
        await asyncio.wait([self._task])
        return f"the proxy is not kept running: {self._task.exception() or 'it was stopped'}"

    async def stop(self) -> None:
        await self._child.stop(self._spec.stop_timeout_s)
