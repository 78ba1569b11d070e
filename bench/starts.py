"""Starts of a cluster while somebody has some of its ports: which ones, since when, and what must come of it.

The same seed gives the same choice; the ports themselves are free ones of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

SETTINGS = ("cluster.controller_port", "proxy.http_port", "proxy.grpc_port")
UNTAKEN = 0.4  # share of the starts that find all ports free
CHOSEN = 0.3  # share of the untaken ports that are left to the start itself to choose


class Since(StrEnum):
    BEFORE = "before"
    MEANWHILE = "meanwhile"  # after the start has looked at its ports


@dataclass(frozen=True, slots=True)
class PortPlan:
    """Of one start. What is in neither has a port that is free."""

    taken: Mapping[str, Since]  # by setting
    chosen: frozenset[str]  # settings that are 0

    def __str__(self) -> str:
        return ", ".join(f"{setting} {since}" for setting, since in self.taken.items()) or "none"


@dataclass(frozen=True, slots=True)
class Ended:
    """How one start ended."""

    seconds: float
    text: str  # all that it printed, when it did not come up
    num_ready: int = 0  # workers, when it came up
    answer: str = ""  # likewise: to the question that is asked then
    is_left: bool = False  # something of it, although it failed


def plan_start(seed: int, number: int) -> PortPlan:
    rng = Random(f"{seed} start {number}")
    num_taken = 0 if rng.random() < UNTAKEN else rng.randint(1, len(SETTINGS))
    taken = {setting: rng.choice(list(Since)) for setting in sorted(rng.sample(SETTINGS, num_taken))}
    chosen = frozenset(setting for setting in SETTINGS if setting not in taken and rng.random() < CHOSEN)
    return PortPlan(taken, chosen)


def fault_of(ended: Ended, taken: Mapping[str, int], num_workers: int, answer: str) -> str | None:
    """`taken`: the ports that somebody else had, by setting; `answer`: the right one. None: as it should be."""
    if ended.is_left:
        return "something of it is left"
    if ended.text:
        if named(ended.text, taken) is None:
            return f"it did not start, and names no port that was taken: {ended.text.strip()[-500:]}"
        return None
    if ended.num_ready != num_workers:
        return f"it came up with {ended.num_ready} of {num_workers} workers"
    if ended.answer != answer:
        return f"it answered {ended.answer!r}, not {answer!r}"
    return None


def named(text: str, taken: Mapping[str, int]) -> str | None:
    """The setting of a port that one line names together with it."""
    for setting, port in taken.items():
        for line in text.splitlines():
            if re.search(rf"\b{port}\b", line) and f"({setting})" in line:
                return setting
    return None
