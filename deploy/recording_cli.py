"""`pdserve trace` and `pdserve timeline`: names and help texts; a command's code is imported when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deploy.cluster_name import Name

Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="Record so long, from now on.", metavar="N")]
Last = Annotated[
    float | None,
    typer.Option(
        "--last", min=0.1, help="Instead, what lies back so long, where it is still kept.", metavar="N",
        show_default=False,
    ),
]  # fmt: skip


class Axis(StrEnum):
    TIME = "time"
    STEP = "step"


def trace(
    seconds: Seconds = 10.0,
    last: Last = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON.", metavar="FILE")] = Path("trace.json"),
    name: Name = "default",
) -> None:
    """Record what all workers and the proxy do, as a file for ui.perfetto.dev."""
    from deploy.commands.trace import run

    run(name, seconds, last, output)


def timeline(
    file: Annotated[
        Path | None,
        typer.Argument(help="A trace; without it, the cluster is recorded.", metavar="TRACE", show_default=False),
    ] = None,
    seconds: Seconds = 10.0,
    last: Last = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="SVG or PNG.", metavar="FILE")] = Path("timeline.svg"),
    by: Annotated[Axis, typer.Option(help="The axis; by steps only for one engine.")] = Axis.TIME,
    title: Annotated[str | None, typer.Option(help="Of the picture.", metavar="TEXT", show_default=False)] = None,
    name: Name = "default",
) -> None:
    """Draw a picture of a trace: a row for each request, with its prefill, transfer and decode."""
    from deploy.commands.timeline import run

    run(name, file, seconds, last, output, by is Axis.STEP, title)
