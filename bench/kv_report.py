"""A measurement of the KV plane as Markdown, as tables in a terminal, and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.kv import IDLE_S, KIB, MEMCPY, HandoffRun, KVReport, Series
from bench.table import markdown_table

GB = 1e9
MIB = KIB * KIB


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table; every cell is text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def show(report: KVReport, console: Console) -> None:
    for sheet in sheets(report):
        table = Table(title=sheet.title)
        for i, column in enumerate(sheet.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    console.print(noise(report), markup=False, soft_wrap=True)


def markdown(report: KVReport, plot: str) -> str:
    """`plot`: the picture's path, as the text is to name it."""
    parts = ["# The KV plane, measured", noise(report), f"![Bandwidth of each path, beside memcpy]({plot})"]
    for sheet in sheets(report):
        parts += [f"## {sheet.title}", markdown_table(sheet.columns, sheet.rows).rstrip()]
    return "\n\n".join(parts) + "\n"


def noise(report: KVReport) -> str:
    """How calm the machine was, by itself and by what repeats of one memcpy say."""
    before, after = report.loads
    spreads = [spread(series[MEMCPY].read_s) for series in (*report.blocks.values(), *report.prompts.values())]
    return (
        f"{report.num_cores} cores, load {before:.1f} before and {after:.1f} after. Repeats of one and the same "
        f"memcpy: the slowest took {statistics.median(spreads):.1f} times as long as the fastest (median of the "
        f"rows), {max(spreads):.1f} times at worst. Numbers are medians; latency is that of one block."
    )


def sheets(report: KVReport) -> Iterator[Sheet]:
    blocks = {f"{size // KIB} KiB": series for size, series in report.blocks.items()}
    prompts = {f"{num_tokens} tokens": series for num_tokens, series in report.prompts.items()}
    yield bandwidth("By size of a block", "block", blocks)
    yield bandwidth("By length of a prompt, in blocks of the default model", "prompt", prompts)
    yield Sheet(
        "Exposed transfer of one prompt of the real model over shared memory",
        ("chunks of", "layer ranges", "prefill, s", "exposed, ms", "share of prefill", "reads", "hidden share"),
        [handoff(run) for run in report.handoffs],
    )
    source, reader = report.idle_cpu_s
    yield Sheet(
        f"CPU of two idle connected workers in {IDLE_S:g} s",
        ("side", "CPU, s", "share of a core"),
        [(side, f"{used:.3f}", f"{used / IDLE_S:.2%}") for side, used in (("source", source), ("reader", reader))],
    )


def bandwidth(title: str, first: str, table: Mapping[str, Mapping[str, Series]]) -> Sheet:
    rows = []
    for label, by_path in table.items():
        memcpy = gb_per_s(by_path[MEMCPY], by_path[MEMCPY].read_s)
        for path, series in by_path.items():
            read = gb_per_s(series, series.read_s)
            row = [label, path, f"{read:.2f}", f"{read / memcpy:.0%}"]
            if not series.total_s:
                row += ["", "", ""]
            else:
                total = gb_per_s(series, series.total_s)
                row += [f"{total:.2f}", f"{total / memcpy:.0%}", f"{1e6 * statistics.median(series.latency_s):.0f}"]
            rows.append(row)
    columns = (
        first,
        "path",
        "read, GB/s",
        "of memcpy",
        "with the copy into the cache, GB/s",
        "of memcpy",
        "latency, µs",
    )
    return Sheet(title, columns, rows)


def handoff(run: HandoffRun) -> list[str]:
    return [
        f"{run.chunk_tokens} tokens",
        str(run.layer_ranges),
        f"{run.prefill_s:.2f}",
        f"{1e3 * run.exposed_s:.1f}",
        f"{run.exposed_s / run.prefill_s:.2%}",
        str(run.received.num_reads),
        f"{run.received.overlap_ratio:.0%}",
    ]


def gb_per_s(series: Series, seconds: Sequence[float]) -> float:
    return series.num_bytes / statistics.median(seconds) / GB


def spread(seconds: Sequence[float]) -> float:
    return max(seconds) / min(seconds)


def draw(report: KVReport, file: Path) -> None:
    """Bandwidth into staging, by size of a block and by length of a prompt; whiskers: the slowest and the fastest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_one(left, {f"{size // KIB} KiB": series for size, series in report.blocks.items()})
    left.set(xlabel="one block", ylabel="GB/s", title="64 MiB in blocks of one size")
    _draw_one(right, {str(num_tokens): series for num_tokens, series in report.prompts.items()})
    right.set(xlabel="tokens of the prompt", title="one prompt of the default model")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.savefig(file)


def _draw_one(axes: Any, table: Mapping[str, Mapping[str, Series]]) -> None:
    for path in next(iter(table.values())):
        series = [by_path[path] for by_path in table.values()]
        middle = [gb_per_s(s, s.read_s) for s in series]
        low = [y - s.num_bytes / max(s.read_s) / GB for y, s in zip(middle, series, strict=True)]
        high = [s.num_bytes / min(s.read_s) / GB - y for y, s in zip(middle, series, strict=True)]
        is_baseline = not series[0].total_s
        style = {"color": "0.4", "linestyle": "--" if path == MEMCPY else ":"} if is_baseline else {"marker": "o"}
        axes.errorbar(list(table), middle, yerr=[low, high], capsize=3, label=path, **style)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
