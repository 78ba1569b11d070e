"""The newest answers' ways through the cluster, for whoever looks later.

Belongs to the event loop; times are the loop's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.request.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class Course:
    """One answer's way, as far as it is known: to its end, or until now."""

    wire_id: str
    admitted_at: float
    dispatched_at: float | None
    first_token_at: float | None
    known_until: float
    outcome: str | None  # ok, or an error's code; None while it runs
    prefill_worker: str | None
    decode_worker: str | None
    num_prompt_tokens: int
    num_completion_tokens: int
    num_attempts: int

    @classmethod
    def of(cls, lifecycle: Lifecycle, now: float) -> Course:
        job, progress, route = lifecycle.job, lifecycle.progress, lifecycle.route
        outcome = lifecycle.error.code.value if lifecycle.error is not None else "ok"
        return cls(
            wire_id=job.wire_id,
            admitted_at=job.admitted_at,
            dispatched_at=job.admitted_at + progress.queue_s if lifecycle.num_attempts else None,
            first_token_at=progress.first_token_at,
            known_until=now,
            outcome=outcome if lifecycle.phase.is_end else None,
            prefill_worker=route.prefill_worker if route is not None else None,
            decode_worker=route.decode_worker if route is not None else None,
            num_prompt_tokens=len(job.prompt_ids),
            num_completion_tokens=len(progress.accepted),
            num_attempts=lifecycle.num_attempts,
        )


class CourseLog:
    """Maintains the newest `capacity` courses that have ended, numbered from 0."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._courses: deque[Course] = deque(maxlen=capacity)
        self._next_number = 0

    def ended(self, choices: Sequence[Lifecycle], now: float) -> None:
        self._courses += [Course.of(choice, now) for choice in choices]
        self._next_number += len(choices)

    def since(self, number: int) -> tuple[int, list[Course]]:
        """The courses from `number` on, as far as they are still kept, and the number of the first of them."""
        first = min(max(number, self._next_number - len(self._courses)), self._next_number)
        return first, list(self._courses)[len(self._courses) - (self._next_number - first) :]
