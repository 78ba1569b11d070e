"""One thing that a request went through: when it began and ended, in the process that saw it.

Times are the monotonic clock's, in seconds, which is the event loop's too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Stage:
    name: str  # also its span's
    started_at: float
    ended_at: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None  # that ended it

    @property
    def duration_s(self) -> float:
        return max(0.0, self.ended_at - self.started_at)
