"""`pdserve doctor`, `plan` and `top`: names and help texts; a command's code is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cluster_name import Name

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def doctor(
    config: Annotated[
        Path | None, typer.Option(help="YAML; by default deploy/local.yaml.", metavar="FILE", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting of the file; repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look whether this machine can run a cluster, and say what to do where it cannot. Exit status 1 if it cannot."""
    from deploy.commands.doctor import run

    run(config, settings or [], as_json)


def plan(
    model: Annotated[
        str,
        typer.Argument(help="Folder of a Hugging Face model (config.json is enough), or a hub id.", metavar="MODEL"),
    ] = "smollm2-135m-instruct",
    hardware: Annotated[
        str, typer.Option(help="Of one worker: cpu-core, l4, l40s, a100, h100 or h200.", metavar="NAME")
    ] = "cpu-core",
    rate: Annotated[float, typer.Option(min=0.001, help="Requests a second, when it is busy.", metavar="N")] = 1.0,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of a request.", metavar="N")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of a request.", metavar="N")] = 128,
    cached: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of a prompt that a prefix cache has.", metavar="SHARE")
    ] = 0.0,
    ttft: Annotated[
        float, typer.Option(min=0.001, help="Hoped for until the first token, seconds.", metavar="S")
    ] = 2.0,
    tpot: Annotated[float, typer.Option(min=0.001, help="Hoped for from token to token, seconds.", metavar="S")] = 0.1,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.1, help="Of one worker.", metavar="GIB", show_default=False)
    ] = None,
    link_gb_s: Annotated[
        float | None, typer.Option(min=0.01, help="KV from worker to worker.", metavar="GB/S", show_default=False)
    ] = None,
    compute_share: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="Of peak compute.", metavar="SHARE", show_default=False)
    ] = None,
    memory_share: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="Of peak bandwidth.", metavar="SHARE", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16.", metavar="DTYPE", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Work out how many prefill and decode workers a load needs, with the arithmetic."""
    from deploy.commands.plan import PlanOptions, run
    from deploy.plan.plan import Traffic

    traffic = Traffic(rate, prompt_tokens, output_tokens, cached, ttft, tpot)
    run(PlanOptions(model, hardware, traffic, memory_gib, link_gb_s, compute_share, memory_share, dtype, as_json))


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once; also where the output is no terminal.")] = False,
    name: Name = "default",
) -> None:
    """Watch a cluster in the terminal: latencies against their goals, workers, hand-offs, errors. Ends with Ctrl-C."""
    from deploy.commands.top import run

    run(name, once)
