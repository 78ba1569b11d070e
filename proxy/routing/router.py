"""Which worker gets a request: pure functions of what the workers report.

A policy takes the workers that could serve, a turn that grows by one with each decision, and a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker's last report, corrected by what was sent to it since."""

    worker: str
    num_waiting: int
    num_requests: int  # waiting and running
    num_queued_tokens: int


Cost = Callable[[WorkerView], tuple[int, int]]
Policy = Callable[[Sequence[WorkerView], int, Cost], int]


def prefill_cost(view: WorkerView) -> tuple[int, int]:
    """What a new prompt waits for: the tokens before it."""
    return (view.num_queued_tokens, view.num_requests)


def decode_cost(view: WorkerView) -> tuple[int, int]:
    """What slows a new stream: the streams beside it."""
    return (view.num_requests, view.num_queued_tokens)


def round_robin(views: Sequence[WorkerView], turn: int, cost: Cost) -> int:
    """The index of the next worker, whatever its load."""
    return turn % len(views)


def least_loaded(views: Sequence[WorkerView], turn: int, cost: Cost) -> int:
    """The index of the cheapest worker; equals take turns."""
    order = [(turn + i) % len(views) for i in range(len(views))]
    return min(order, key=lambda i: cost(views[i]))


POLICIES: dict[str, Policy] = {"round_robin": round_robin, "least_loaded": least_loaded}
