"""`pdserve timeline`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from deploy.commands.trace import record
from deploy.timeline.picture import Panel, draw
from deploy.timeline.rows import read_events, timeline


def run(
    name: str, file: Path | None, seconds: float, last: float | None, output: Path, by_step: bool, title: str | None
) -> None:
    """Of a trace file, or else of the running cluster."""
    console = Console(highlight=False)
    events = read_events(file) if file is not None else record(name, seconds, last, console).events()
    shown = timeline(events, by_step)
    draw([Panel(title or (file.stem if file is not None else name), shown)], output)
    console.print(f"{output}: {len(shown.rows)} requests", markup=False, soft_wrap=True)
