"""What came of a drill: how each request ended, and what was left over; any fault makes it a failed one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import starmap

from bench.chaos.mishaps import Mishap


@dataclass(slots=True)
class Verdict:
    """Maintains the counts; the lists name what is wrong."""

    num_requests: int
    answered: int = 0
    vanished: int = 0  # clients that went away, as they were told to
    at_three_deaths: int = 0  # requests that were at so many workers when these were killed: ended, as they must
    wrong: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    mishaps: Counter[tuple[Mishap, str]] = field(default_factory=Counter)
    num_scalings: int = 0
    retries: dict[str, float] = field(default_factory=dict)  # by stage
    migrations: float = 0.0
    longest_s: float = 0.0  # of an answer
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.wrong or self.hangs or self.failed or self.leaks)

    @property
    def faults(self) -> list[str]:
        named = (("wrong", self.wrong), ("hung", self.hangs), ("failed", self.failed), ("left over", self.leaks))
        return [f"{kind}: {fault}" for kind, faults in named for fault in faults]

    def rows(self) -> list[tuple[str, str]]:
        """For a table: what, how many."""
        mishaps = [(f"{role} {mishap}", count) for (mishap, role), count in sorted(self.mishaps.items())]
        counts: Sequence[tuple[str, float]] = (
            ("requests", self.num_requests),
            ("answered as undisturbed", self.answered),
            ("clients that vanished", self.vanished),
            ("ended after three deaths", self.at_three_deaths),
            ("wrong texts", len(self.wrong)),
            ("hangs", len(self.hangs)),
            ("failed requests", len(self.failed)),
            ("leaks", len(self.leaks)),
            *mishaps,
            ("changes of pool sizes", self.num_scalings),
            *((f"tried again, {stage}", count) for stage, count in sorted(self.retries.items())),
            ("went on from a token on another worker", self.migrations),
        )
        times = [("longest answer", f"{self.longest_s:.1f} s"), ("all", f"{self.seconds:.0f} s")]
        return [*starmap(lambda name, count: (name, f"{count:g}"), counts), *times]

    def markdown(self, command: str) -> str:
        lines = [f"`{command}`", "", "| | |", "|---|---:|"]
        lines += [f"| {name} | {value} |" for name, value in self.rows()]
        return "\n".join(lines + [f"- {fault}" for fault in self.faults]) + "\n"
