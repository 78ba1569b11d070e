"""What can happen to each message of the KV plane, and whether it does: drawn from a seed, the message and its number.

So whether a message is hit does not depend on what happened to others, and a run is repeated by its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from threading import Lock


class Message(StrEnum):
    PREFILL = "prefill"  # proxy to P, as are aborts
    ABORT = "abort"
    HANDSHAKE = "handshake"
    INTRODUCTION = "handshake's answer"
    OPEN = "open"
    CHUNK = "chunk ready"
    DONE = "prefill done"
    ENDED = "session ended"
    RENEW = "renew"
    ALIVE = "renew's answer"
    COMMIT = "commit"
    VERDICT = "verdict"
    CLOSE = "close"
    CLOSED = "close's answer"
    CONNECT = "connect"
    READ = "read"
    JOIN = "join"  # of two-sided transports, as the next four
    JOINED = "join's answer"
    SEND = "send"
    AGREED = "send's answer"
    ENTRY = "entry, header or bytes"
    POOL_HANDSHAKE = "pool: handshake"  # worker to node, as the next ones
    POOL_INTRODUCTION = "pool: handshake's answer"
    LOOKUP = "pool: lookup"
    FOUND = "pool: lookup's answer"
    POOL_READ = "pool: read"
    POOL_COMMIT = "pool: commit"
    POOL_VERDICT = "pool: verdict"
    POOL_CLOSE = "pool: close"
    POOL_CLOSED = "pool: close's answer"
    OFFER = "pool: offer"
    HELD = "pool: offer's answer"
    PULL_HANDSHAKE = "pull: handshake"  # node to the worker that offers, as the next ones
    PULL_INTRODUCTION = "pull: handshake's answer"
    PULL = "pull: read"
    PULL_COMMIT = "pull: commit"
    PULL_VERDICT = "pull: verdict"


class Fault(StrEnum):
    LOST = "lost"  # and nobody is told
    REFUSED = "refused"  # the sender is told; of a read: it failed
    LATE = "late"
    TWICE = "twice"
    OVERTAKEN = "overtaken"
    TORN = "torn"  # of a read: half of it is copied late, when the source may have changed
    P_DIES_BEFORE = "P dies before"
    P_DIES_AFTER = "P dies after"
    D_DIES_BEFORE = "D dies before"
    D_DIES_AFTER = "D dies after"
    WORKER_DIES_BEFORE = "worker dies before"  # P or D, whichever talks with the node
    WORKER_DIES_AFTER = "worker dies after"
    NODE_DIES_BEFORE = "node dies before"
    NODE_DIES_AFTER = "node dies after"
    NODE_STOPS = "node stops"  # for a while
    CLOCK_JUMPS = "clock jumps"  # of the one whose lease it is

    @property
    def is_rare(self) -> bool:
        """It hits everything that is open on one worker or node, not one message."""
        return self in DEATHS or self in POOL_MISHAPS


DEATHS = (Fault.P_DIES_BEFORE, Fault.P_DIES_AFTER, Fault.D_DIES_BEFORE, Fault.D_DIES_AFTER)
POOL_DEATHS = (
    Fault.WORKER_DIES_BEFORE,
    Fault.WORKER_DIES_AFTER,
    Fault.NODE_DIES_BEFORE,
    Fault.NODE_DIES_AFTER,
)
POOL_MISHAPS = (*POOL_DEATHS, Fault.NODE_STOPS)
COMMAND = (Fault.LOST, Fault.LATE, Fault.TWICE)  # of the proxy, which is not part of the hand-off
SENT = (Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.TWICE, Fault.OVERTAKEN)
ANSWERED = (Fault.LOST, Fault.REFUSED, Fault.LATE)
CALL, ANSWER = (*SENT, *DEATHS), (*ANSWERED, *DEATHS)
POOL_CALL, POOL_ANSWER = (*SENT, *POOL_MISHAPS), (*ANSWERED, *POOL_MISHAPS)
LAST_EVENT = (Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.TWICE, *DEATHS)
READ = (Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.TORN, Fault.CLOCK_JUMPS)

POSSIBLE: Mapping[Message, tuple[Fault, ...]] = {
    Message.PREFILL: COMMAND,
    Message.ABORT: COMMAND,
    Message.HANDSHAKE: CALL,
    Message.INTRODUCTION: ANSWER,
    Message.OPEN: CALL,
    Message.CHUNK: CALL,
    Message.DONE: LAST_EVENT,
    Message.ENDED: LAST_EVENT,
    Message.RENEW: (*CALL, Fault.CLOCK_JUMPS),
    Message.ALIVE: ANSWER,
    Message.COMMIT: (*CALL, Fault.CLOCK_JUMPS),
    Message.VERDICT: ANSWER,
    Message.CLOSE: CALL,
    Message.CLOSED: ANSWER,
    Message.CONNECT: (Fault.LOST, Fault.REFUSED, Fault.LATE),
    Message.READ: (*READ, *DEATHS),
    Message.JOIN: CALL,
    Message.JOINED: ANSWER,
    Message.SEND: CALL,
    Message.AGREED: ANSWER,
    Message.ENTRY: (*ANSWERED, Fault.CLOCK_JUMPS, *DEATHS),
    Message.POOL_HANDSHAKE: POOL_CALL,
    Message.POOL_INTRODUCTION: POOL_ANSWER,
    Message.LOOKUP: POOL_CALL,
    Message.FOUND: POOL_ANSWER,
    Message.POOL_READ: (*READ, *POOL_MISHAPS),
    Message.POOL_COMMIT: (*POOL_CALL, Fault.CLOCK_JUMPS),
    Message.POOL_VERDICT: POOL_ANSWER,
    Message.POOL_CLOSE: POOL_CALL,
    Message.POOL_CLOSED: POOL_ANSWER,
    Message.OFFER: POOL_CALL,
    Message.HELD: POOL_ANSWER,
    Message.PULL_HANDSHAKE: POOL_CALL,
    Message.PULL_INTRODUCTION: POOL_ANSWER,
    Message.PULL: (*READ, *POOL_MISHAPS),
    Message.PULL_COMMIT: (*POOL_CALL, Fault.CLOCK_JUMPS),
    Message.PULL_VERDICT: POOL_ANSWER,
}


@dataclass(frozen=True, slots=True)
class Draw:
    """`fault` None: the message goes its way. `delay_s` is what a late one takes."""

    fault: Fault | None
    delay_s: float = 0.0


@dataclass(slots=True)
class Faults:
    """Maintains how many messages there were, and what happened to how many of them."""

    seed: str
    rate: float  # of all messages
    rare_rate: float  # of all messages: deaths
    time_scale: float = 1.0  # of delays
    without: frozenset[Fault] = frozenset()
    messages: Counter[Message] = field(default_factory=Counter)
    hits: Counter[tuple[Message, Fault]] = field(default_factory=Counter)
    _numbers: Counter[tuple[Message, str]] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def draw(self, message: Message, whose: str) -> Draw:
        """`whose`: the session's or the link's name; its messages of a kind are numbered. From any thread."""
        with self._lock:
            self.messages[message] += 1
            self._numbers[message, whose] += 1
            number = self._numbers[message, whose]
        rng = Random(f"{self.seed} {whose} {message} {number}")
        chance = rng.random()
        if chance >= self.rate + self.rare_rate:
            return Draw(None)
        rare = chance < self.rare_rate
        possible = [f for f in POSSIBLE[message] if f.is_rare == rare and f not in self.without]
        if not possible:
            return Draw(None)
        fault = rng.choice(possible)
        self.hits[message, fault] += 1
        return Draw(fault, self.time_scale * 10 ** rng.uniform(-2.5, 1.6))  # 3 ms to 40 s
