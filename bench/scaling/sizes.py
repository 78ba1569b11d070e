"""The sizes of a cluster's pools over time, as its controller tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import grpc

from rpc import control_pb2, control_pb2_grpc, worker_pb2

EVERY_S = 1.0
CALL_TIMEOUT_S = 5.0
ROLES = {worker_pb2.ROLE_PREFILL: "prefill", worker_pb2.ROLE_DECODE: "decode"}


@dataclass(frozen=True, slots=True)
class Sizes:
    at_s: float  # since the load's start
    desired: dict[str, int]  # by role
    ready: dict[str, int]


@dataclass(frozen=True, slots=True)
class SizeChange:
    at_s: float
    role: str
    before: int
    after: int


class SizeWatch:
    """Maintains what was seen."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.seen: list[Sizes] = []
        self._control = control_pb2_grpc.ControlStub(channel)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            try:
                load = await self._control.GetLoad(control_pb2.GetLoadRequest(), timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                load = control_pb2.GetLoadResponse()  # it may be busy for a moment
            pools = [pool for pool in load.pools if pool.role in ROLES]
            if pools:
                desired = {ROLES[pool.role]: pool.num_desired for pool in pools}
                ready = {ROLES[pool.role]: pool.num_ready for pool in pools}
                self.seen.append(Sizes(loop.time() - started_at, desired, ready))
            await asyncio.sleep(EVERY_S)


def changes(seen: Sequence[Sizes]) -> Iterator[SizeChange]:
    for earlier, later in pairwise(seen):
        for role, after in later.desired.items():
            if after != earlier.desired[role]:
                yield SizeChange(later.at_s, role, earlier.desired[role], after)
