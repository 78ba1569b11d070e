"""What a routing decision knows of one worker: a value, so that policies stay pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker's last report, corrected by what was sent to it since."""

    worker: str
    num_waiting: int
    num_requests: int  # waiting and running
    num_queued_tokens: int
    num_cached_tokens: int = 0  # of the prompt in question, as far as its cache events say
