"""`pdserve bench …` and `pdserve drill …`: names and help texts; a command's code is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure parts of it on this machine.")


@bench.command()
def kv(
    model: Annotated[
        str, typer.Option(help="Whose prompts are handed off.", metavar="PATH|HUB_ID")
    ] = "smollm2-135m-instruct",
    tokens: Annotated[int, typer.Option(min=32, help="Of such a prompt.", metavar="N")] = 2048,
    repeats: Annotated[int, typer.Option(min=1, help="Of each read.", metavar="N")] = 7,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown, and a plot beside it.", metavar="FILE")
    ] = None,
) -> None:
    """Bandwidth and latency of each KV transport beside memcpy, and what of a hand-off prefill does not hide."""
    from deploy.commands.bench import run

    run(model, tokens, repeats, output)


@bench.command()
def routing(
    requests: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many.", metavar="N", show_default=False)
    ] = None,
) -> None:
    """A public trace of conversations through each routing policy: hit rate, balance and waiting."""
    from bench.replay import Setting
    from bench.routing import report

    print(report(requests, Setting()), end="")


drill = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Try what it promises on a cluster of its own.")


@drill.command()
def chaos(
    requests: Annotated[int, typer.Option(min=1, help="How many are asked, 32 at once.", metavar="N")] = 1000,
    seed: Annotated[int, typer.Option(help="Of requests and mishaps.", metavar="N")] = 0,
    clients_vanish: Annotated[
        bool, typer.Option("--clients-vanish", help="Clients go away at random moments.")
    ] = False,
    scale: Annotated[bool, typer.Option("--scale", help="Pools grow and shrink meanwhile.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown, added to its end.", metavar="FILE")
    ] = None,
) -> None:
    """Kill, stop and cut off workers while requests run: each must be answered as undisturbed. Exit status 1 if not."""
    from deploy.commands.drill import run

    run(requests, seed, clients_vanish=clients_vanish, scales=scale, output=output)


@drill.command()
def autoscale(
    phase_s: Annotated[float, typer.Option(min=30, help="Seconds before, after and between steps.", metavar="S")] = 600,
    seed: Annotated[int, typer.Option(help="Of the requests.", metavar="N")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown, added to its end, and a plot.", metavar="FILE")
    ] = None,
) -> None:
    """Step the load up and down: each pool follows in at most one change. Exit status 1 if not."""
    from deploy.commands.drill_scaling import load_step

    load_step(phase_s, seed, output)


@drill.command()
def shift(
    before_s: Annotated[float, typer.Option(min=30, help="Seconds of chats.", metavar="S")] = 300,
    after_s: Annotated[float, typer.Option(min=30, help="Seconds of long prompts.", metavar="S")] = 600,
    seed: Annotated[int, typer.Option(help="Of the requests.", metavar="N")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown, added to its end, and a plot.", metavar="FILE")
    ] = None,
) -> None:
    """Shift from chats to long prompts, with role change and without: only one recovers. Exit status 1 if not."""
    from deploy.commands.drill_scaling import shift as run

    run(before_s, after_s, seed, output)


@drill.command()
def alerts(
    speed: Annotated[float, typer.Option(min=1, max=10, help="Divides every duration in the rules.", metavar="N")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown, added to its end.", metavar="FILE")
    ] = None,
) -> None:
    """Do to a cluster what alerts are for: each must fire, and clear after it. Exit status 1 if not."""
    from deploy.commands.drill_alerts import run

    run(speed, output)


@drill.command()
def rolling(
    seed: Annotated[int, typer.Option(help="Of the requests.", metavar="N")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown, added to its end.", metavar="FILE")
    ] = None,
) -> None:
    """Replace every worker under load: no request fails, each text is as undisturbed. Exit status 1 if not."""
    from deploy.commands.drill_rolling import run

    run(seed, output)


@drill.command()
def starts(
    number: Annotated[int, typer.Option("--starts", min=1, help="How often it is started.", metavar="N")] = 10,
    seed: Annotated[int, typer.Option(help="Of which ports are taken, and when.", metavar="N")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Markdown, added to its end.", metavar="FILE")
    ] = None,
) -> None:
    """Start 2 prefill + 2 decode while ports are taken: it serves, or names port and setting. Exit status 1 if not."""
    from deploy.commands.drill_starts import run

    run(number, seed, output)
