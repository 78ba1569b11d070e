"""What can happen to each message of a hand-off, and whether it does: drawn from a seed, the message and its number.

So whether a message is hit does not depend on what happened to others, and a run is repeated by its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random


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
    CLOCK_JUMPS = "P's clock jumps"

    @property
    def is_rare(self) -> bool:
        """It hits everything that is open on one worker, not one hand-off."""
        return self in DEATHS


DEATHS = (Fault.P_DIES_BEFORE, Fault.P_DIES_AFTER, Fault.D_DIES_BEFORE, Fault.D_DIES_AFTER)
CALL = (Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.TWICE, Fault.OVERTAKEN, *DEATHS)
ANSWER = (Fault.LOST, Fault.REFUSED, Fault.LATE, *DEATHS)
EVENT = (Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.TWICE, Fault.OVERTAKEN, *DEATHS)
COMMAND = (Fault.LOST, Fault.LATE, Fault.TWICE)  # of the proxy, which is not part of the hand-off
LAST_EVENT = (Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.TWICE, *DEATHS)

POSSIBLE: Mapping[Message, tuple[Fault, ...]] = {
    Message.PREFILL: COMMAND,
    Message.ABORT: COMMAND,
    Message.HANDSHAKE: CALL,
    Message.INTRODUCTION: ANSWER,
    Message.OPEN: CALL,
    Message.CHUNK: EVENT,
    Message.DONE: LAST_EVENT,
    Message.ENDED: LAST_EVENT,
    Message.RENEW: (*CALL, Fault.CLOCK_JUMPS),
    Message.ALIVE: ANSWER,
    Message.COMMIT: (*CALL, Fault.CLOCK_JUMPS),
    Message.VERDICT: ANSWER,
    Message.CLOSE: CALL,
    Message.CLOSED: ANSWER,
    Message.CONNECT: (Fault.LOST, Fault.REFUSED, Fault.LATE),
    Message.READ: (Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.TORN, Fault.CLOCK_JUMPS, *DEATHS),
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

    def draw(self, message: Message, whose: str) -> Draw:
        """`whose`: the session's or the link's name; its messages of a kind are numbered."""
        self.messages[message] += 1
        self._numbers[message, whose] += 1
        rng = Random(f"{self.seed} {whose} {message} {self._numbers[message, whose]}")
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
