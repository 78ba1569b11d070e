"""Who may wait for a worker and who is refused, at once and with the time after which asking again makes sense.

Refused are those for whom no place is left, those whose tenant has had what it may, and those whose client would get
its first token later than it hopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from proxy.access.caller import Caller
from proxy.admission.first_token_estimate import FirstTokenEstimate
from proxy.admission.slo import Slo
from proxy.admission.tenant_rates import TenantRates
from proxy.admission.waiting_room import RoomFull
from proxy.errors import ApiError, ErrorCode, invalid
from proxy.request.priority import Priority
from proxy.routing.queue import RequestQueue

T = TypeVar("T")
MOST_RETRY_AFTER_S = 60


@dataclass(slots=True)
class Visit:
    """The places that one request has taken and not used yet, one for each choice."""

    caller: Caller
    priority: Priority
    num_places: int
    num_tokens: int = 0


class Entrance(Generic[T]):
    """Maintains what was seen of the workers' speed, and what each tenant may still ask this minute."""

    def __init__(self, queue: RequestQueue[T], clock: Callable[[], float]) -> None:
        self.estimate = FirstTokenEstimate(queue.drain)
        self.rates = TenantRates(clock)
        self._queue = queue
        self._clock = clock

    def enter(self, caller: Caller, priority: Priority, num_choices: int, slo: Slo) -> Visit:
        """A place for each choice, to be used or left. Raises ApiError."""
        limit = self._queue.room.most_requests(priority)
        if num_choices > limit:
            raise invalid("n", f"{num_choices} choices are more than the {limit} that may wait (max_queued_requests)")
        self._check_rates(caller)
        self._check_queued(caller, priority, num_choices)
        self._check_slo(caller, priority, slo)
        self._enter(caller, priority, num_choices)
        self.rates.asked(caller)
        return Visit(caller, priority, num_choices)

    def check_room(self, caller: Caller, priority: Priority) -> None:
        """Before the request itself is read: whether it could get a place now. Raises ApiError."""
        self._enter(caller, priority, 1)
        self._queue.room.leave(caller.tenant, 1, 0)

    def bring(self, visit: Visit, num_tokens: int) -> None:
        """Its prompts, now that they are counted; it keeps its places. Raises ApiError."""
        room, caller = self._queue.room, visit.caller
        limit = room.most_tokens(visit.priority)
        if num_tokens > limit:
            text = f"{num_tokens} tokens are more than the {limit} that may wait (max_queued_tokens)"
            raise invalid("prompt", text)
        try:
            room.bring(caller.tenant, num_tokens, visit.priority)
        except RoomFull as full:
            raise self._busy(f"the server is busy: {full}", "queue_full", caller, visit.priority) from full
        visit.num_tokens = num_tokens
        self.rates.used(caller, num_tokens)

    def leave(self, visit: Visit) -> None:
        """Without having used its places."""
        self._queue.room.leave(visit.caller.tenant, visit.num_places, visit.num_tokens)

    def _enter(self, caller: Caller, priority: Priority, num_places: int) -> None:
        try:
            self._queue.room.enter(caller.tenant, num_places, priority)
        except RoomFull as full:
            raise self._busy(f"the server is busy: {full}", "queue_full", caller, priority) from full

    def _check_rates(self, caller: Caller) -> None:
        wait_s = self.rates.wait_s(caller)
        if wait_s > 0:
            text = f"the tenant's requests or tokens of this minute are used up (rate limit); again in {wait_s:.0f} s"
            raise _refused(text, "rate_limited", wait_s)

    def _check_queued(self, caller: Caller, priority: Priority, num_choices: int) -> None:
        limit = caller.limits.max_queued
        num_waiting = self._queue.room.requests[caller.tenant]
        if limit is not None and num_waiting + num_choices > limit:
            text = f"{num_waiting} of the tenant's requests wait already, of at most {limit} (max_queued)"
            raise self._busy(text, "tenant_queue_full", caller, priority)

    def _check_slo(self, caller: Caller, priority: Priority, slo: Slo) -> None:
        if slo.ttft_s is None:
            return
        predicted_s = self.estimate.first_token_s(self._work_before(caller, priority), self._clock())
        if predicted_s is not None and predicted_s > slo.ttft_s:
            text = f"x-slo-ttft-ms: the first token is expected after {1e3 * predicted_s:.0f} ms as things are"
            raise _refused(text, "slo_unattainable", predicted_s - slo.ttft_s)

    def _busy(self, text: str, reason: str, caller: Caller, priority: Priority) -> ApiError:
        return _refused(text, reason, self.estimate.wait_s(self._work_before(caller, priority), self._clock()) or 1.0)

    def _work_before(self, caller: Caller, priority: Priority) -> float:
        return self._queue.work_before(caller.tenant, batch=priority.is_batch)


def _refused(text: str, reason: str, wait_s: float) -> ApiError:
    retry_after_s = min(max(1, math.ceil(wait_s)), MOST_RETRY_AFTER_S)
    return ApiError(ErrorCode.RESOURCE_EXHAUSTED, text, reason=reason, retry_after_s=retry_after_s)
