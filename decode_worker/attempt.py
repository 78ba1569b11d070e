"""One try at one request on its decode worker, and what it went through so far."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from engine.request import Request
from kv_transfer.handoff import HandoffResult
from kv_transfer.pool_reader import PoolRead
from kv_transfer.pool_ring import PoolMember
from rpc import worker_pb2
from telemetry.stage import Stage, Value


class EventStream(Protocol):
    """Where an attempt's events go: the stream of the proxy that asked. A fake one serves tests."""

    def send(self, **event: Any) -> None: ...


@dataclass(slots=True, eq=False)
class Attempt:
    """Maintains the stages that are over. `ended` is resolved with None, or with how the engine failed it."""

    request_id: str
    number: int
    request: Request
    stream: EventStream
    reserved: asyncio.Future[None]
    ended: asyncio.Future[tuple[worker_pb2.FailureCode, str] | None]
    traceparent: str = ""
    origin: worker_pb2.Origin | None = None
    receiving: bool = False  # a hand-off is open
    writes_back: tuple[PoolMember, ...] = ()  # to these, when it ends
    task: asyncio.Task[None] | None = field(default=None)
    stages: list[Stage] = field(default_factory=list)

    def received(self, result: HandoffResult, now: float) -> None:
        """The prefill worker's KV, which it called Valid just now."""
        committing_since = now - result.stages.get("validate", 0.0)
        if result.reads:
            told: dict[str, Value] = {"pdserve.transport": result.transport, "pdserve.bytes": result.received_bytes}
            told |= {f"pdserve.{stage}_s": seconds for stage, seconds in result.stages.items()}
            first, last = min(read.started_at for read in result.reads), max(read.ended_at for read in result.reads)
            self._add("kv.transfer", first, last, told)
        if result.kv_valid:
            self._add("kv.commit", committing_since, now)

    def read_pool(self, read: PoolRead, now: float) -> None:
        if read.transport is not None:
            told: dict[str, Value] = {"pdserve.transport": read.transport, "pdserve.bytes": read.num_bytes}
            self._add("kv.transfer", now - read.transfer_s, now, told)

    def failed(self, reason: str, now: float) -> None:
        """Its hand-off did: in the queue, or after it."""
        admitted_at = self.request.admitted_at
        if admitted_at is None:
            self._add("decode.queue", self.request.arrived_at, now, error=reason)
        else:
            self._add("kv.transfer", admitted_at, now, error=reason)

    def spoke(self, now: float) -> list[Stage]:
        """The first token is there; all stages until then, in order."""
        request = self.request
        admitted_at = now if request.admitted_at is None else request.admitted_at
        has_kv_since = max([admitted_at, *(stage.ended_at for stage in self.stages)])
        waits = Stage("decode.queue", request.arrived_at, admitted_at, {"pdserve.attempt": self.number})
        self._add("decode.first_token", has_kv_since, now)
        self.stages.insert(0, waits)
        return self.stages

    def _add(
        self,
        name: str,
        started_at: float,
        ended_at: float,
        told: Mapping[str, Value] = MappingProxyType({}),
        error: str | None = None,
    ) -> None:
        self.stages.append(Stage(name, started_at, ended_at, {"pdserve.attempt": self.number, **told}, error))
