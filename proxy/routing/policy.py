"""Which of several candidates gets a prompt: pure functions, so that a table tests them and a trace can be replayed.

A policy gets one candidate or more and returns the index of its choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.routing.cost import Candidate, CostWeights, load_cost, total_cost
from proxy.routing.worker_view import WorkerView


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be placed, and what else the answer may depend on."""

    num_tokens: int  # of the prompt
    turn: int  # grows by one with each decision
    draw: int  # 64 random bits, new for each decision
    session: bytes = b""  # the same for all turns of a conversation
    weights: CostWeights = field(default_factory=CostWeights)


Policy = Callable[[Sequence[Candidate], Question], int]


def round_robin(candidates: Sequence[Candidate], question: Question) -> int:
    """The next one, whatever the load."""
    return question.turn % len(candidates)


def at_random(candidates: Sequence[Candidate], question: Question) -> int:
    return question.draw % len(candidates)


def least_loaded(candidates: Sequence[Candidate], question: Question) -> int:
    """The one where least waits; equals take turns."""
    return _cheapest(candidates, question, lambda candidate: load_cost(candidate, question.weights))


def power_of_two(candidates: Sequence[Candidate], question: Question) -> int:
    """The less loaded one of two that are drawn (Mitzenmacher, 2001)."""
    first, rest = question.draw % len(candidates), question.draw // len(candidates)
    if len(candidates) == 1:
        return first
    second = (first + 1 + rest % (len(candidates) - 1)) % len(candidates)
    return min((first, second), key=lambda i: (load_cost(candidates[i], question.weights), i != first))


def session_affinity(candidates: Sequence[Candidate], question: Question) -> int:
    """Always the same workers for a session, while they are there (rendezvous hashing, Thaler and Ravishankar 1998)."""

    def rank(view: WorkerView | None) -> bytes:
        name = view.worker.encode() if view is not None else b""
        return hashlib.blake2b(question.session + b"\0" + name, digest_size=8).digest()

    return max(range(len(candidates)), key=lambda i: (rank(candidates[i].prefill), rank(candidates[i].decode)))


def prefix_aware(candidates: Sequence[Candidate], question: Question) -> int:
    """The one where the prompt costs least, with what waits there; equals take turns."""
    return _cheapest(candidates, question, lambda c: total_cost(c, question.num_tokens, question.weights))


def _cheapest(candidates: Sequence[Candidate], question: Question, cost: Callable[[Candidate], float]) -> int:
    order = [(question.turn + i) % len(candidates) for i in range(len(candidates))]
    return min(order, key=lambda i: (cost(candidates[i]), _num_requests(candidates[i])))


def _num_requests(candidate: Candidate) -> int:
    return sum(view.num_requests for view in (candidate.prefill, candidate.decode) if view is not None)


POLICIES: dict[str, Policy] = {
    "round_robin": round_robin,
    "random": at_random,
    "least_loaded": least_loaded,
    "power_of_two": power_of_two,
    "session_affinity": session_affinity,
    "prefix_aware": prefix_aware,
}
