"""A trace in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Times go in as Unix seconds and come out as whole microseconds since the first event. Slices of one thread nest or are
apart; what overlaps goes to different lanes (`Process.lanes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Value: TypeAlias = "str | int | float | bool | Sequence[str]"
Fields: TypeAlias = dict[str, Any]
Args: TypeAlias = Mapping[str, Value]
NO_ARGS: Args = {}
INSIDE_S = 1e-6  # so far from a slice's end an arrow is tied to it, to lie inside


class Trace:
    """Maintains the events, and the numbers of processes and arrows."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self._num_arrows = 0

    def process(self, name: str, role: str) -> Process:
        """One more process; they are shown in the order they were made. `role`: prefill | decode | mixed | proxy."""
        process = Process(len(self.processes) + 1, name, role)
        self.processes.append(process)
        return process

    def arrow(self, source: Slice, target: Slice, name: str) -> None:
        """From the end of one slice to the end of another, and never back in time."""
        self._num_arrows += 1
        at = source.start if source.end - source.start < INSIDE_S else source.end - INSIDE_S
        to = max(at, target.start if target.end - target.start < INSIDE_S else target.end - INSIDE_S)
        number = self._num_arrows
        source.process.add("s", source.tid, at, name=name, cat="arrow", id=number)
        target.process.add("f", target.tid, to, name=name, cat="arrow", id=number, bp="e")  # to the slice it lies in

    def events(self) -> list[Fields]:
        """All of them, names first, then by time; as in the file."""
        timed = sorted((event for process in self.processes for event in process.events), key=lambda event: event.at)
        origin = timed[0].at if timed else 0.0
        return [
            *(event for process in self.processes for event in process.names()),
            *(event.since(origin) for event in timed),
        ]

    def save(self, file: Path, **about: Value) -> int:
        """The number of events written. `about` is kept beside them, as is the wall clock time of the first one."""
        events = self.events()
        starts = [event.at for process in self.processes for event in process.events]
        about = {"started_at_unix_s": min(starts, default=0.0), **about}
        content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
        file.write_text(json.dumps(content, separators=(",", ":")))
        return len(events)


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    at: float
    until: float | None  # of a slice
    fields: Fields  # all others

    def since(self, origin: float) -> Fields:
        """With its times, in microseconds. An end is rounded as the start of what follows is: nothing overlaps."""
        at = round((self.at - origin) * 1e6)
        if self.until is None:
            return {**self.fields, "ts": at}
        return {**self.fields, "ts": at, "dur": round((self.until - origin) * 1e6) - at}


@dataclass(slots=True, eq=False)
class Process:
    """Maintains one process's events and its threads."""

    pid: int
    name: str
    role: str
    events: list[Event] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)  # by tid, from 1

    def thread(self, name: str) -> int:
        self.threads.append(name)
        return len(self.threads)

    def lanes(self, name: str) -> Lanes:
        return Lanes(self, name)

    def slice(self, tid: int, name: str, kind: str, start: float, end: float, args: Args = NO_ARGS) -> Slice:
        end = max(start, end)
        self.add("X", tid, start, end, name=name, cat=kind, args=args)
        return Slice(self, tid, start, end)

    def mark(self, tid: int, name: str, kind: str, at: float, args: Args = NO_ARGS) -> None:
        self.add("i", tid, at, name=name, cat=kind, s="t", args=args)

    def counter(self, name: str, at: float, values: Mapping[str, int]) -> None:
        self.add("C", 0, at, name=name, args=dict(values))

    def add(self, phase: str, tid: int, at: float, until: float | None = None, **fields: object) -> None:
        self.events.append(Event(at, until, {"ph": phase, "pid": self.pid, "tid": tid, **fields}))

    def names(self) -> list[Fields]:
        """The metadata that says what the numbers mean."""
        named: list[tuple[str, int, dict[str, Value]]] = [
            ("process_name", 0, {"name": self.name, "role": self.role}),
            ("process_sort_index", 0, {"sort_index": self.pid}),
            ("thread_name", 0, {"name": "counters"}),
        ]
        for tid, name in enumerate(self.threads, 1):
            named.append(("thread_name", tid, {"name": name}))
            named.append(("thread_sort_index", tid, {"sort_index": tid}))
        return [{"ph": "M", "pid": self.pid, "tid": tid, "ts": 0, "name": n, "args": a} for n, tid, a in named]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Where an arrow may begin or end."""

    process: Process
    tid: int
    start: float
    end: float


class Lanes:
    """Maintains as many threads as there are things at once; each goes to the first that is free when it starts."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name
        self._tids: list[int] = []
        self._free_at: list[float] = []  # by lane

    def take(self, start: float, end: float) -> int:
        """The thread for something that lasts from `start` to `end`; to be asked in the order of the starts."""
        lane = next((n for n, free_at in enumerate(self._free_at) if free_at <= start), None)
        if lane is None:
            lane = len(self._tids)
            self._tids.append(self._process.thread(f"{self._name} {lane + 1}"))
            self._free_at.append(end)
        self._free_at[lane] = end
        return self._tids[lane]
