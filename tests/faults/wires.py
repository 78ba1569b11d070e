"""Which two incarnations a bad line connects, and whom of them a fault hits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.faults.fault import Fault, Faults
from tests.faults.mortal import Mortal
from tests.faults.pool_member import PoolMemberNode

BeforeAndAfter = tuple[Fault, Fault]
P_DIES = (Fault.P_DIES_BEFORE, Fault.P_DIES_AFTER)
D_DIES = (Fault.D_DIES_BEFORE, Fault.D_DIES_AFTER)
WORKER_DIES = (Fault.WORKER_DIES_BEFORE, Fault.WORKER_DIES_AFTER)
NODE_DIES = (Fault.NODE_DIES_BEFORE, Fault.NODE_DIES_AFTER)
STOPPED_S = 4.0  # at most: longer than anybody waits for a node


@dataclass(slots=True, eq=False)
class Blow:
    """What the faults of one line do, to the one that calls and to the one that is called."""

    caller: Mortal
    called: Mortal
    caller_dies: BeforeAndAfter
    called_dies: BeforeAndAfter
    kill: Callable[[Mortal], None]
    jump_s: float
    time_scale: float = 1.0

    def strike(self, fault: Fault | None, *, after: bool) -> None:
        if fault is self.caller_dies[after]:
            self.kill(self.caller)
        elif fault is self.called_dies[after]:
            self.kill(self.called)
        elif fault is Fault.CLOCK_JUMPS and not after:
            self.called.skew_s += self.jump_s
        elif fault is Fault.NODE_STOPS and not after:
            for end in (self.caller, self.called):
                if isinstance(end, PoolMemberNode):
                    end.stop_for(self.time_scale * Random(f"{end.incarnation} stops").uniform(0.1, STOPPED_S))


class PairWire:
    """A `Wire`. Maintains who of its two ends has died."""

    def __init__(
        self,
        blow: Blow,
        faults: Faults,
        start: Callable[[Coroutine[Any, Any, object]], asyncio.Task[Any]],
    ) -> None:
        self.name = f"{blow.caller.incarnation} {blow.called.incarnation}"
        self.faults = faults
        self.cut_seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._blow = blow
        self._start = start
        self.see_cut()

    def strike(self, fault: Fault | None, *, after: bool) -> None:
        self._blow.strike(fault, after=after)

    def is_cut(self) -> bool:
        return self._blow.caller.is_dead or self._blow.called.is_dead

    async def pass_by(self) -> None:
        for end in (self._blow.caller, self._blow.called):
            if isinstance(end, PoolMemberNode):
                await end.pass_by()

    def see_cut(self) -> None:
        called = self._blow.called
        told = self._blow.caller.is_dead or (called.is_dead and not called.dies_silently)
        if told and not self.cut_seen.done():
            self.cut_seen.set_result(None)

    def in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        return self._start(work)


def stopped_s(ends: Mapping[str, Mortal], *incarnations: str) -> float:
    """How long one of these still does nothing."""
    found = [ends[incarnation] for incarnation in incarnations if incarnation in ends]
    return max((end.stopped_s() for end in found if isinstance(end, PoolMemberNode)), default=0.0)
