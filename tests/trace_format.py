"""Checks a trace against the Trace Event Format, as far as what opens it relies on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

PHASES = {"M", "X", "i", "C", "s", "f"}


def check_trace(events: Sequence[Mapping[str, Any]]) -> None:
    """Raises AssertionError: all have names, times never go back, slices nest or are apart, arrows have two ends."""
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    last = 0
    for event in events:
        assert event["ph"] in PHASES, event
        assert event["pid"] in processes, event
        assert event["name"], event
        if event["ph"] == "M":
            continue
        assert (event["pid"], event["tid"]) in threads, event
        assert isinstance(event["ts"], int), event
        assert event["ts"] >= last, f"{event} comes after {last}"
        last = event["ts"]
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values()), event
    _check_slices([event for event in events if event["ph"] == "X"])
    _check_arrows(events)


def _check_slices(slices: Sequence[Mapping[str, Any]]) -> None:
    by_thread: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for one in slices:
        assert one["dur"] >= 0, one
        by_thread[one["pid"], one["tid"]].append(one)
    for thread in by_thread.values():
        open_until: list[int] = []
        for one in thread:
            while open_until and open_until[-1] <= one["ts"]:
                open_until.pop()
            end = one["ts"] + one["dur"]
            assert not open_until or end <= open_until[-1], f"{one} overlaps what ends at {open_until[-1]}"
            open_until.append(end)


def _check_arrows(events: Sequence[Mapping[str, Any]]) -> None:
    tails = {e["id"]: e for e in events if e["ph"] == "s"}
    heads = {e["id"]: e for e in events if e["ph"] == "f"}
    assert tails.keys() == heads.keys()
    for number, tail in tails.items():
        assert tail["ts"] <= heads[number]["ts"]
        for end in (tail, heads[number]):
            assert any(
                e["ph"] == "X"
                and (e["pid"], e["tid"]) == (end["pid"], end["tid"])
                and e["ts"] <= end["ts"] <= e["ts"] + e["dur"]
                for e in events
            ), f"{end} lies in no slice"
