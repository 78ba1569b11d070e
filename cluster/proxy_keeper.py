"""Keeps the proxy's runner alive: the runner restarts the proxy, this restarts the runner.

A runner that an earlier controller started is taken over as it is.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from cluster.backoff import Backoff
from cluster.launcher import Launcher, ProcessLost, ProxyReport, RunningProxy
from cluster.spec import ProxySpec, RestartSpec

DESCRIBE_TIMEOUT_S = 2.0
logger = logging.getLogger(__name__)


class ProxyKeeper:
    """Maintains at most one runner. `run` does the work."""

    def __init__(self, spec: ProxySpec | None, restart: RestartSpec, launcher: Launcher) -> None:
        self.spec = spec
        self._restart = restart
        self._launcher = launcher
        self._runner: RunningProxy | None = None
        self._stopping = asyncio.Event()

    def adopt(self, runner: RunningProxy | None) -> None:
        self._runner = runner

    async def run(self) -> None:
        """Until `stop`. Without a proxy there is nothing to do."""
        if self.spec is None:
            return
        backoff = Backoff(self._restart)
        while not self._stopping.is_set():
            started_at = monotonic()
            reason = await self._run_once(self.spec)
            self._runner = None
            if self._stopping.is_set():
                return
            backoff = backoff.after_life(monotonic() - started_at)
            logger.warning("the proxy's runner ended (%s); started again in %g s", reason, backoff.delay_s)
            await self._wait(backoff.delay_s)

    async def stop(self) -> None:
        self._stopping.set()
        if self._runner is not None:
            await self._runner.stop()

    async def describe(self) -> ProxyReport | None:
        """None when it does not answer."""
        if self._runner is None:
            return None
        try:
            async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
                return await self._runner.describe()
        except (ProcessLost, TimeoutError):
            return None

    async def _run_once(self, spec: ProxySpec) -> str:
        """Why it ended. It is gone then, and its name is free."""
        try:
            if self._runner is None:
                self._runner = await self._launcher.launch_proxy(spec)
                if self._stopping.is_set():  # `stop` found nothing to stop yet
                    await self._runner.stop()
            reason = await self._runner.watch()
        except ProcessLost as error:
            reason = str(error)
        if self._runner is not None and not self._stopping.is_set():
            await self._runner.stop()  # quick for a dead one; it may be ill instead
        return reason

    async def _wait(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return
