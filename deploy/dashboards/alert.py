"""One alert: a number, the bound that it must not pass, and what to do when it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RUNBOOK = "docs/metrics.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """`value` is a query that has an answer while all is well, too; `bound` completes it, as in `> 0.05`."""

    name: str
    value: str
    bound: str
    lasts: str  # for so long, before it fires
    severity: Literal["critical", "warning"]
    summary: str
    action: str

    @property
    def expr(self) -> str:
        return f"({self.value}) {self.bound}"

    def json(self) -> dict[str, object]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.action, "runbook": RUNBOOK},
        }
