"""What one hand-off was, as each side saw it: small values that outlive it, for whoever looks later.

Times are the monotonic clock's, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from kv_transfer.handoff import HandoffResult
from kv_transfer.messages import FailureReason, Ticket


@dataclass(frozen=True, slots=True)
class HandoffRecord:
    """D's side, from its blocks being reserved to the peer's verdict or the failure."""

    request_id: str
    ticket: Ticket
    source: str  # P's incarnation
    started_at: float
    ended_at: float
    outcome: HandoffResult | FailureReason


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """P's side, from the first Open to the end of the lease."""

    request_id: str | None  # None: its Prefill never came
    ticket: Ticket
    opened_at: float
    ended_at: float
    failure: FailureReason | None  # None: committed, and called Valid
