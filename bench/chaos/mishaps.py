"""What happens to workers meanwhile: one mishap every few seconds, never to the last sound worker of a role."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from random import Random

from bench.chaos.fleet import Fleet, Target
from bench.chaos.relayed_membership import RelayedMembership

REPLACED_WITHIN_S = 180.0
ASK_EVERY_S = 0.25


class Mishap(StrEnum):
    KILLED = "killed -9"
    STOPPED = "stopped for a while"
    CUT = "connections cut and refused for a while"
    STALLED = "connections silent for a while"


Scale = Callable[[str, int], Awaitable[None]]  # of a role: so many workers
LONGEST_S = {Mishap.STOPPED: 12.0, Mishap.CUT: 5.0, Mishap.STALLED: 14.0}  # a silent worker is lost after 10


class Mishaps:
    """Maintains who is disturbed just now, and what happened so far."""

    def __init__(
        self,
        fleet: Fleet,
        membership: RelayedMembership,
        rng: Random,
        every_s: float,
        time_scale: float,
        most: int | None = None,
    ) -> None:
        self.count: Counter[tuple[Mishap, str]] = Counter()  # by what it was and the worker's role
        self.killed_at: list[float] = []  # the loop's clock
        self._fleet = fleet
        self._membership = membership
        self._rng = rng
        self._every_s = every_s
        self._time_scale = time_scale  # of how long a while is
        self._most = most  # mishaps; None: no limit
        self._disturbed: set[str] = set()  # names

    async def run(self, served: asyncio.Event) -> None:
        """Until everything is served, or there were enough; then all of them are mended."""
        async with asyncio.TaskGroup() as group:
            while not served.is_set() and (self._most is None or self.count.total() < self._most):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every_s * self._rng.uniform(0.3, 1.7)):
                        await served.wait()
                        return
                target = self._choose(list(await self._fleet.ready()))
                if target is not None:
                    mishap = self._rng.choice(list(Mishap))
                    self._disturbed.add(target.name)
                    self.count[mishap, target.role] += 1
                    group.create_task(self._have(mishap, target))

    def _choose(self, ready: list[Target]) -> Target | None:
        sound = sorted((t for t in ready if t.name not in self._disturbed), key=lambda target: target.name)
        per_role = Counter(target.role for target in sound)
        spare = [target for target in sound if per_role[target.role] > 1]
        return self._rng.choice(spare) if spare else None

    async def _have(self, mishap: Mishap, target: Target) -> None:
        length_s = self._time_scale * self._rng.uniform(0.3, LONGEST_S.get(mishap, 1.0))
        try:
            if mishap is Mishap.KILLED:
                await self._kill(target)
            elif mishap is Mishap.STOPPED:
                await self._stop(target, length_s)
            else:
                await self._cut_off(target, length_s, stalls=mishap is Mishap.STALLED)
        finally:
            self._disturbed.discard(target.name)

    async def _kill(self, target: Target) -> None:
        with suppress(ProcessLookupError):
            os.kill(target.pid, signal.SIGKILL)
        self.killed_at.append(asyncio.get_running_loop().time())
        await self._fleet.died(target)
        with suppress(TimeoutError):  # it may have been scaled away meanwhile
            async with asyncio.timeout(REPLACED_WITHIN_S):
                while not await self._is_replaced(target):  # noqa: ASYNC110  nothing here announces it
                    await asyncio.sleep(ASK_EVERY_S)

    async def _is_replaced(self, target: Target) -> bool:
        return any(t.name == target.name and t.incarnation != target.incarnation for t in await self._fleet.ready())

    async def _stop(self, target: Target, length_s: float) -> None:
        with suppress(ProcessLookupError):
            os.kill(target.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(length_s)
        finally:
            with suppress(ProcessLookupError):
                os.kill(target.pid, signal.SIGCONT)

    async def _cut_off(self, target: Target, length_s: float, *, stalls: bool) -> None:
        relay = self._membership.relay(target.incarnation)
        if relay is None:
            return
        if stalls:
            relay.stall()
        else:
            await relay.cut()
        await asyncio.sleep(length_s)
        if stalls:
            relay.flow()
        elif self._membership.relay(target.incarnation) is relay:
            await relay.mend()


class Scaling:
    """Grows and shrinks pools meanwhile, between what they were and `num_more` workers more."""

    def __init__(
        self, scale: Scale | None, usual: dict[str, int], rng: Random, every_s: float, num_more: int = 1
    ) -> None:
        self.num_changes = 0
        self._scale = scale  # None: they stay as they are
        self._usual = usual
        self._rng = rng
        self._every_s = every_s
        self._num_more = num_more

    async def run(self, served: asyncio.Event) -> None:
        """Until everything is served; the sizes are then the usual ones again."""
        if self._scale is None:
            return
        while not served.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s * self._rng.uniform(0.5, 1.5)):
                    await served.wait()
                    break
            role = self._rng.choice(sorted(self._usual))
            await self._scale(role, self._usual[role] + self._rng.randint(0, self._num_more))
            self.num_changes += 1
        for role, num_workers in self._usual.items():
            await self._scale(role, num_workers)
