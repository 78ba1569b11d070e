"""What `pdserve top` shows: the state that the proxy tells its own page at /dashboard, laid out for a terminal.

Pure: one state in, one picture out. Rates of a worker need the state before, and are empty without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
MOST_ERRORS = 5
MOST_HANDOFFS = 8
LATENCIES = (
    ("ttft", "TTFT", "ttft_s"),
    ("ttft_batch", "TTFT, batch", None),
    ("tpot", "TPOT", "tpot_s"),
    ("queue", "queue", None),
    ("handoff", "hand-off", None),
)
State = Mapping[str, Any]


def screen(state: State, before: State | None, width: int) -> RenderableType:
    """`before`: an earlier state of the same proxy."""
    parts: list[RenderableType] = [
        _head(state),
        _rates(state, width),
        _latencies(state, width),
        _workers(state, before),
    ]
    if state["handoffs"]:
        parts.append(_handoffs(state))
    if state["errors"]:
        parts.append(_errors(state))
    gap = Text("")
    return Group(*(piece for part in parts for piece in (part, gap)))


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest `width` values, each between nothing and the largest of them."""
    shown = values[-width:]
    most = max(shown, default=0)
    return "".join(BARS[round(value / most * (len(BARS) - 1))] if most > 0 else BARS[0] for value in shown)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _head(state: State) -> Text:
    head = Text(f"{state['model']}  ", style="bold")
    head.append("ready" if state["is_ready"] else "no worker takes requests", "green" if state["is_ready"] else "red")
    if state["is_controller_away"]:
        head.append("  the controller is away: served on its last membership", "yellow")
    return head


def _rates(state: State, width: int) -> Table:
    points = state["points"]
    table = _table("", "NOW", "THE LAST MINUTES")
    shown = max(10, min(60, width - 36))
    for title, of in (
        ("prompt tokens/s", "prompt_tokens"),
        ("generated tokens/s", "generated_tokens"),
        ("running", "running"),
        ("queued", "queued"),
    ):
        values = [float(point[of]) for point in points]
        table.add_row(title, f"{values[-1]:,.0f}" if values else "", sparkline(values, shown))
    return table


def _latencies(state: State, width: int) -> Table:
    table = _table("LAST MINUTE", "P50", "P95", "P99", "GOAL", "VALUES")
    quantiles = state["minute"]["quantiles"]
    for kind, title, goal_name in LATENCIES:
        found = quantiles.get(kind)
        if found is None:
            continue
        goal = state["goals"][goal_name] if goal_name is not None else None
        is_missed = goal is not None and found["p95"] > goal
        p50, p95, p99 = (duration(found[quantile]) for quantile in ("p50", "p95", "p99"))
        table.add_row(title, p50, Text(p95, "red" if is_missed else ""), p99, duration(goal), f"{found['num']:,}")
    if not quantiles:
        table.add_row("no requests", *[""] * 5)
    return table


def _workers(state: State, before: State | None) -> Table:
    table = _table("WORKER", "ROLE", "STATE", "RUNNING", "WAITING", "KV USE", "PREFILL/S", "DECODE/S", "NODE")
    earlier = {worker["incarnation"]: worker for worker in before["workers"]} if before is not None else {}
    span_s = state["at"] - before["at"] if before is not None else 0.0
    for worker in state["workers"]:
        then = earlier.get(worker["incarnation"])
        table.add_row(
            escape(worker["worker"]),
            worker["role"],
            Text(worker["state"], "green" if worker["state"] == "ready" else "yellow"),
            str(worker["num_running"]),
            str(worker["num_waiting"]),
            "" if worker["kv_usage"] is None else f"{worker['kv_usage']:.0%}",
            _rate(worker, then, "num_prefill_tokens", span_s),
            _rate(worker, then, "num_decode_tokens", span_s),
            escape(worker["node"]),
        )
    return table


def _rate(now: State, then: State | None, of: str, span_s: float) -> str:
    if then is None or span_s <= 0:
        return ""
    return f"{max(0, now[of] - then[of]) / span_s:,.0f}"


def _handoffs(state: State) -> Table:
    table = _table("FROM", "TO", "KV PATH", "NOW", "LAST MINUTE")
    for pair in state["handoffs"][:MOST_HANDOFFS]:
        numbers = (str(pair["num_now"]), str(pair["num_minute"]))
        table.add_row(escape(pair["prefill"]), escape(pair["decode"]), pair["transport"], *numbers)
    return table


def _errors(state: State) -> Table:
    table = _table("ERROR", "TIMES", "AGO", "WHAT THE CLIENT READ")
    for error in state["errors"][:MOST_ERRORS]:
        ago = max(0.0, state["at"] - error["at"])
        code = f"{error['http_status']} {error['code']}"
        table.add_row(code, str(error["count"]), f"{ago:.0f} s", escape(error["message"]))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
