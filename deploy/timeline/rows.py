"""From a trace file to rows: what each request did, when, and on which kind of worker.

Positions are seconds since the first thing shown, or steps of the one engine that the trace has.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from deploy.errors import CommandError

BarKind = Literal["wait", "prefill", "decode", "handoff", "read"]
MarkKind = Literal["preempted", "ended"]
BAR_KINDS: dict[str, BarKind] = {**{kind: kind for kind in get_args(BarKind)}, "queued": "wait"}
MARK_KINDS: dict[str, MarkKind] = {"preempted": "preempted", "ended": "ended", "answered": "ended"}
MOST_ROWS = 60


class TraceError(CommandError):
    """The file is no trace that a picture could be made of."""


@dataclass(frozen=True, slots=True)
class Bar:
    kind: BarKind
    role: str  # of the process: prefill | decode | mixed | proxy
    start: float
    end: float
    step: int | None  # of its process, counted from 0


@dataclass(frozen=True, slots=True)
class Mark:
    kind: MarkKind
    role: str
    at: float


@dataclass(slots=True)
class Row:
    """One request, across all processes."""

    request: str
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Short enough for the margin."""
        name = self.request.rpartition(".")[0] or self.request
        return name if len(name) <= 12 else f"{name[:11]}…"

    @property
    def start(self) -> float:
        return min(bar.start for bar in self.bars)

    @property
    def end(self) -> float:
        return max(bar.end for bar in self.bars)

    @property
    def ends(self) -> list[Mark]:
        """When it was answered: one at most, the worker's own word before the proxy's."""
        ends = [mark for mark in self.marks if mark.kind == "ended"]
        return sorted(ends, key=lambda mark: (mark.role == "proxy", mark.at))[:1]


@dataclass(frozen=True, slots=True)
class Timeline:
    rows: tuple[Row, ...]  # in the order in which they came
    num_left_out: int  # rows beyond MOST_ROWS
    unit: Literal["seconds", "steps"]

    @property
    def width(self) -> float:
        return max(row.end for row in self.rows)


def read_events(file: Path) -> list[dict[str, Any]]:
    """Raises TraceError."""
    try:
        events = json.loads(file.read_text())["traceEvents"]
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise TraceError(f"{file} is no trace: write one with pdserve trace") from error
    if not isinstance(events, list):
        raise TraceError(f"{file} is no trace: its traceEvents is no list")
    return events


def timeline(events: Sequence[Mapping[str, Any]], by_step: bool = False) -> Timeline:
    """Raises TraceError when no request is in it, or by steps when it has several engines."""
    roles = {e["pid"]: e["args"]["role"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    rows: dict[str, Row] = {}
    for event in events:
        request = event.get("args", {}).get("request")
        if request:
            _take(rows.setdefault(request, Row(request)), event, roles[event["pid"]])
    shown = sorted((row for row in rows.values() if row.bars), key=lambda row: row.start)
    if not shown:
        raise TraceError("the trace has no request in it")
    shown = _in_steps(shown, events, roles) if by_step else [_moved(row, shown[0].start) for row in shown]
    return Timeline(tuple(shown[:MOST_ROWS]), max(0, len(shown) - MOST_ROWS), "steps" if by_step else "seconds")


def _take(row: Row, event: Mapping[str, Any], role: str) -> None:
    kind, at = event["cat"], event["ts"] / 1e6
    if event["ph"] == "X" and kind in BAR_KINDS:
        row.bars.append(Bar(BAR_KINDS[kind], role, at, at + event["dur"] / 1e6, event["args"].get("step")))
    elif event["ph"] == "i" and kind in MARK_KINDS:
        row.marks.append(Mark(MARK_KINDS[kind], role, at))


def _moved(row: Row, origin: float) -> Row:
    bars = [replace(bar, start=bar.start - origin, end=bar.end - origin) for bar in row.bars]
    return Row(row.request, bars, [replace(mark, at=mark.at - origin) for mark in row.marks])


def _in_steps(rows: Sequence[Row], events: Sequence[Mapping[str, Any]], roles: Mapping[int, str]) -> list[Row]:
    """Times become the number of the step then running; a step is as wide as any other."""
    engines = [pid for pid, role in roles.items() if role != "proxy"]
    if len(engines) != 1:
        raise TraceError(f"the trace has {len(engines)} engines, whose steps differ: show it by time")
    starts = sorted(event["ts"] / 1e6 for event in events if event["ph"] == "X" and event["cat"] == "step")

    def step_at(at: float) -> float:
        return float(bisect.bisect_left(starts, at))

    counted = []
    for row in rows:
        bars = [
            replace(bar, start=step_at(bar.start), end=step_at(bar.end))
            if bar.step is None
            else replace(bar, start=float(bar.step), end=bar.step + 1.0)
            for bar in row.bars
            if bar.role != "proxy"
        ]
        marks = [replace(mark, at=step_at(mark.at)) for mark in row.marks if mark.role != "proxy"]
        counted.append(Row(row.request, bars, marks))
    return counted
