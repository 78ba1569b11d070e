"""Where a request runs next: what it asks of its workers, and those it gets.

Values that pass between a request's lifecycle and the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from proxy.request.job import Job
from proxy.routing.transport_choice import Path
from proxy.workers.worker_link import WorkerLink
from rpc import worker_pb2


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request runs next.

    Without `prefill` the decode worker computes the prompt, for `local_reason`, or finds it in the pool.
    """

    decode: WorkerLink | None  # None: chosen when the prompt is in the pool
    prefill: WorkerLink | None
    transport: str | None
    local_reason: str | None
    choosing_since: float  # the loop's clock, as the request was looked at; until then it waited
    nodes: tuple[worker_pb2.PoolMember, ...] = ()  # of the pool, for a request that reads it or writes back


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a request asks of its next placement."""

    decode: WorkerLink | None = None  # stay here while it is usable
    prefill: WorkerLink | None = None  # likewise
    failed: frozenset[Path] = frozenset()  # taken only when the pair has no other
    avoid: frozenset[str] = frozenset()  # incarnations; taken only when there is no other
    lost: frozenset[str] = frozenset()  # incarnations whose link broke while the request was there
    local_reason: str | None = None  # not None: without a prefill worker
    prompt_in_pool: bool = False  # a prefill worker has put it there: only a decode worker is missing


class NotPlaced(Enum):
    """Why a request that waited gets no workers any more."""

    NO_WORKER = "no decode worker came back"
    TOO_MANY_DEATHS = "it was at workers when they died"


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A request that waits for workers. One of the two is called, once, unless it is withdrawn."""

    job: Job
    constraints: Constraints
    place: Callable[[Placement], None]
    give_up: Callable[[NotPlaced], None]
