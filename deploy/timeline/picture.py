"""Timelines as a picture: one row a request, its prefill, decode and transfer told apart by colour and by pattern.

Where prefill and decode run on different workers, a row's upper half is the prefill worker and its lower half the
decode worker. Matplotlib is loaded only when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.errors import CommandError
from deploy.timeline.rows import Bar, BarKind, Row, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES = 10.0
ROW_INCHES = 0.24
FEW_ROWS = 12
FEW_ROWS_INCHES = 0.38  # of each, where there are so few
AROUND_INCHES = 1.1  # title, axis and legend
MOST_APART = 250  # bars of one kind in a row that are drawn one by one; more become longer ones
SMALLEST = 1 / 500  # of the width: what is shorter is drawn so long, and a gap that is shorter is none where bars merge
SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "pdserve", "hatch.linewidth": 0.6, "font.size": 8}


@dataclass(frozen=True, slots=True)
class Look:
    """Told apart without colour too: by brightness and pattern."""

    label: str
    color: str
    hatch: str
    height: float  # of the room that the row has for its worker
    edge: str = "white"  # between neighbours


LOOKS: dict[BarKind, Look] = {
    "wait": Look("waits", "#9a9a9a", "", 0.12),
    "prefill": Look("prefill", "#2a6fb0", "/////", 0.84),
    "handoff": Look("hand-off open", "#a8dccb", "", 0.3),
    "read": Look("KV transfer", "#00805f", "", 0.84, edge="#00805f"),
    "decode": Look("decode", "#f5b942", "", 0.84),
}


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    timeline: Timeline


def draw(panels: Sequence[Panel], file: Path, width: float | None = None) -> None:
    """Writes an SVG or a PNG, as the name ends. `width`: how far the axis goes. Raises CommandError."""
    if file.suffix not in (".svg", ".png"):
        raise CommandError(f"{file} is neither .svg nor .png")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(SETTINGS):
        heights = [_height(len(panel.timeline.rows)) for panel in panels]
        figure, grid = pyplot.subplots(
            len(panels),
            squeeze=False,
            sharex=True,
            figsize=(WIDTH_INCHES, sum(heights)),
            height_ratios=heights,
            layout="constrained",
        )
        width = width or max(panel.timeline.width for panel in panels)
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            _draw_panel(axes, panel, width)
        _draw_legend(figure, panels)
        try:
            figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else {})
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}") from error
        finally:
            pyplot.close(figure)


def _height(num_rows: int) -> float:
    return num_rows * (FEW_ROWS_INCHES if num_rows <= FEW_ROWS else ROW_INCHES) + AROUND_INCHES


def _draw_panel(axes: Axes, panel: Panel, width: float) -> None:
    from matplotlib.ticker import MaxNLocator

    timeline = panel.timeline
    rows = timeline.rows
    split = any(bar.role == "prefill" for row in rows for bar in row.bars)
    for y, row in enumerate(rows):
        axes.hlines(y + 0.5, row.start, row.end, color="#d8d8d8", linewidth=0.6, zorder=0)
        for kind in LOOKS:
            _draw_bars(axes, y, [bar for bar in row.bars if bar.kind == kind], width * SMALLEST, split)
        _draw_marks(axes, y, row, split)
    left_out = f", and {timeline.num_left_out} more requests" if timeline.num_left_out else ""
    axes.set_title(panel.title + left_out, loc="left", fontsize=10)
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [row.label for row in rows], fontsize=7)
    axes.set_ylim(len(rows), 0)
    axes.set_xlim(0, width * 1.01)
    axes.set_xlabel("step" if timeline.unit == "steps" else "seconds")
    axes.tick_params(axis="x", labelbottom=True)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if timeline.unit == "steps":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_bars(axes: Axes, y: int, bars: Sequence[Bar], smallest: float, split: bool) -> None:
    """Of one kind in one row."""
    for role in sorted({bar.role for bar in bars}):
        mine = [bar for bar in bars if bar.role == role]
        look = LOOKS[mine[0].kind]
        top, room = _room(role, split)
        apart = len(mine) <= MOST_APART
        spans = [(bar.start, bar.end) for bar in mine] if apart else _merged(mine, smallest)
        upper = y + top + room * (1 - look.height) / 2
        boxes = [(start, upper, max(end, start + smallest), upper + room * look.height) for start, end in spans]
        _fill(axes, boxes, look, linewidth=0.5 if apart else 0.0)


def _fill(axes: Axes, boxes: Sequence[tuple[float, float, float, float]], look: Look, linewidth: float) -> None:
    """All as one path, which takes a third of the room in a file."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    corners = [
        corner
        for left, upper, right, lower in boxes
        for corner in ((left, upper), (right, upper), (right, lower), (left, lower), (left, upper))
    ]
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY] * len(boxes)
    hatch = look.hatch or None
    axes.add_patch(
        PathPatch(Outline(corners, codes), facecolor=look.color, edgecolor=look.edge, linewidth=linewidth, hatch=hatch)
    )


def _draw_marks(axes: Axes, y: int, row: Row, split: bool) -> None:
    ends = [(mark.at, y + sum(_room(mark.role, split)) - _room(mark.role, split)[1] / 2) for mark in row.ends]
    preempted = [(mark.at, y + 0.5) for mark in row.marks if mark.kind == "preempted"]
    for points, shape in ((ends, "D"), (preempted, "X")):
        at, height = [point[0] for point in points], [point[1] for point in points]
        axes.scatter(at, height, marker=shape, s=16, color="black", linewidths=0, zorder=4)


def _room(role: str, split: bool) -> tuple[float, float]:
    """Top and height of what a row has for a worker of this role; the row itself is 1 high."""
    if not split or role not in ("prefill", "decode"):
        return 0.06, 0.88
    return (0.06, 0.44) if role == "prefill" else (0.5, 0.44)


def _merged(bars: Sequence[Bar], gap: float) -> list[tuple[float, float]]:
    """Start and end of each; neighbours with a smaller gap between them are one."""
    spans: list[tuple[float, float]] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        if spans and bar.start - spans[-1][1] < gap:
            spans[-1] = (spans[-1][0], max(spans[-1][1], bar.end))
        else:
            spans.append((bar.start, bar.end))
    return spans


def _draw_legend(figure: Figure, panels: Sequence[Panel]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [row for panel in panels for row in panel.timeline.rows]
    kinds = {bar.kind for row in rows for bar in row.bars}
    keys: list[Any] = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor=look.edge, label=look.label)
        for kind, look in LOOKS.items()
        if kind in kinds
    ]
    marks = (("ended", "D", "ended"), ("preempted", "X", "preempted"))
    for kind, shape, label in marks:
        if any(mark.kind == kind for row in rows for mark in row.marks):
            keys.append(Line2D([], [], color="black", marker=shape, markersize=4, linestyle="none", label=label))
    split = any(bar.role == "prefill" for row in rows for bar in row.bars)
    title = "upper half: prefill worker, lower half: decode worker" if split else None
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, title=title)
