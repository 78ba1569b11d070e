"""What is asked of a run of fault injection, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kv_transfer.peer import Peer
from kv_transfer.pool_node import PoolNode
from kv_transfer.pool_source import OfferingWorker
from tests.faults.fault import Fault, Faults

RARE_RATE = 0.0015


class Kind(StrEnum):
    """How a round's requests get their KV."""

    ONE_SIDED = "one-sided"  # D reads P's memory
    TWO_SIDED = "two-sided"  # P sends what D asks for
    POOLED = "pooled"  # P and D read from pool nodes and offer to them


RATES: Mapping[Kind, float] = {
    Kind.ONE_SIDED: 0.06,
    Kind.TWO_SIDED: 0.03,  # each read takes four messages more, and one that fails ends the reads beside it
    Kind.POOLED: 0.02,  # several times as many messages, and a node that failed is avoided
}


@dataclass(frozen=True, slots=True)
class Plan:
    """`threads`: real engine threads and the real clock, everything 33 times as fast, and not exactly repeatable."""

    seed: str
    num_handoffs: int
    kind: Kind = Kind.ONE_SIDED
    num_at_once: int = 32
    rate: float | None = None  # of faults; None: the kind's
    rare_rate: float = RARE_RATE
    threads: bool = False
    without: frozenset[Fault] = frozenset()
    node_blocks: int = 24  # of each pool node: few, so that it evicts all the time
    wrap: Callable[[Peer], Peer] = lambda peer: peer
    wrap_node: Callable[[PoolNode], PoolNode] = lambda node: node
    wrap_offering: Callable[[OfferingWorker], OfferingWorker] = lambda worker: worker

    def faults(self) -> Faults:
        rate = RATES[self.kind] if self.rate is None else self.rate
        return Faults(self.seed, rate, self.rare_rate, self.time_scale, self.without)

    @property
    def time_scale(self) -> float:
        return 0.03 if self.threads else 1.0


@dataclass(slots=True)
class Result:
    """Maintains the tables. The three lists must stay empty."""

    faults: Faults
    outcomes: Counter[str] = field(default_factory=Counter)
    failed_attempts: Counter[str] = field(default_factory=Counter)
    wrong_texts: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    num_deaths: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.wrong_texts or self.hangs or self.left_over)

    def add(self, other: Result) -> None:
        self.faults.messages += other.faults.messages
        self.faults.hits += other.faults.hits
        self.outcomes += other.outcomes
        self.failed_attempts += other.failed_attempts
        self.wrong_texts += other.wrong_texts
        self.hangs += other.hangs
        self.left_over += other.left_over
        self.num_deaths += other.num_deaths
        self.seconds += other.seconds
