"""`pdserve`: a cluster brought up, looked at, scaled, asked and taken down from the command line.

Only names and help texts here; a command's code is imported when it runs, so that `--help` is quick.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy import keys_cli, people_cli, recording_cli, trial_cli
from deploy.cluster_name import Name

app = typer.Typer(
    name="pdserve",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(keys_cli.app, name="keys")
app.command("certs")(keys_cli.certs)


class Role(StrEnum):
    """What a worker may become: cluster.spec.ROLE_NAMES."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


def _count(role: str) -> Any:
    text = f"Number of {role} workers; by default the file's."
    return typer.Option(min=0, max=64, help=text, metavar="N", show_default=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"pdserve {version('pdserve')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Serve a large language model with prefill and decode on separate workers."""


@app.command()
def up(
    config: Annotated[
        Path | None, typer.Option(help="YAML; by default deploy/local.yaml.", metavar="FILE", show_default=False)
    ] = None,
    prefill: Annotated[int | None, _count("prefill")] = None,
    decode: Annotated[int | None, _count("decode")] = None,
    mixed: Annotated[int | None, _count("mixed")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Folder of a Hugging Face model, or a hub id.", metavar="PATH|HUB_ID", show_default=False),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it serves; `pdserve down` ends it.")
    ] = False,
    name: Name = "default",
    with_prometheus: Annotated[
        bool, typer.Option("--with-prometheus", help="Start a Prometheus that scrapes it, if one is on PATH.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow addresses beyond loopback without API keys and TLS.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Of a Ray that runs already: HOST:PORT, or ray://HOST:PORT. By default one is started.",
            metavar="ADDRESS",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="One setting of the file, as in proxy.http_port=8080; repeatable.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start a cluster: Ray, controller, workers and proxy. Stays until Ctrl-C, or returns with --detach."""
    from deploy.commands.up import UpOptions, run

    replicas = {"prefill": prefill, "decode": decode, "mixed": mixed}
    run(UpOptions(name, config, replicas, model, detach, with_prometheus, insecure, ray, settings or []))


@app.command()
def down(name: Name = "default") -> None:
    """End a cluster. What runs may finish; nothing of it is left on the machine."""
    from deploy.commands.down import run

    run(name)


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="Of the cluster's Ray; `pdserve up` says it.", metavar="HOST:PORT")],
    token_file: Annotated[Path, typer.Option(help="A copy of the cluster's token.", metavar="FILE")],
    host: Annotated[
        str | None,
        typer.Option(
            help="This machine's address for the others; by default the one that leads there.",
            metavar="ADDRESS",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", help="Of this machine, for `placement`; repeatable.", metavar="NAME=VALUE", show_default=False
        ),
    ] = None,
    resources: Annotated[
        list[str] | None,
        typer.Option("--resource", help="Likewise, as in fast_nic=2.", metavar="NAME=AMOUNT", show_default=False),
    ] = None,
) -> None:
    """Bring this machine into a cluster that runs on another one. Stays until Ctrl-C, or until the cluster ends."""
    from deploy.commands.join import run

    run(address, token_file, host, labels or [], resources or [])


@app.command()
def status(
    name: Name = "default",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show controller, proxy and workers: role, node, state, load, KV use, restarts, address."""
    from deploy.commands.status import run

    run(name, as_json)


@app.command()
def logs(
    worker: Annotated[
        str | None,
        typer.Argument(
            help="A worker (decode-0), controller, proxy or ray; without it, all.",
            metavar="WORKER",
            show_default=False,
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="The last lines of each.", metavar="N")] = 50,
    name: Name = "default",
) -> None:
    """Print the end of the logs."""
    from deploy.commands.logs import run

    run(name, worker, lines)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to say.", metavar="PROMPT")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Of the answer.", metavar="N")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.", metavar="T")] = 0.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**64 - 1, help="Fixes the draw.", metavar="N", show_default=False)
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Continue the prompt as it is, without a chat template.")
    ] = False,
    name: Name = "default",
) -> None:
    """Ask the model; the answer is streamed over gRPC."""
    from deploy.commands.generate import run

    run(name, prompt, text=text, max_tokens=max_tokens, temperature=temperature, seed=seed)


@app.command()
def scale(
    sizes: Annotated[list[str], typer.Argument(help="As in prefill=1 decode=2.", metavar="ROLE=N")],
    name: Name = "default",
) -> None:
    """Change the number of workers, and wait until they are there. Workers that leave finish what runs first."""
    from deploy.commands.scale import run

    run(name, sizes)


@app.command()
def role(
    worker: Annotated[str, typer.Argument(help="As in decode-1.", metavar="WORKER")],
    to: Annotated[Role, typer.Argument(help="Its new role.", metavar="ROLE", show_default=False)],
    name: Name = "default",
) -> None:
    """Give a worker another role, and wait until it serves again. What runs there may finish first."""
    from deploy.commands.role import run

    run(name, worker, to.value)


app.command("doctor")(people_cli.doctor)
app.command("plan")(people_cli.plan)
app.command("top")(people_cli.top)


@app.command()
def replace(name: Name = "default") -> None:
    """Replace every worker by a new one, one after the other, while it serves. Needs room for one more of each role."""
    from deploy.commands.replace import run

    run(name)


app.command("trace")(recording_cli.trace)
app.command("timeline")(recording_cli.timeline)
app.add_typer(trial_cli.bench, name="bench")
app.add_typer(trial_cli.drill, name="drill")


def main() -> None:
    """The `pdserve` command. An error that a person can mend ends it with one message, not a traceback."""
    from deploy.errors import show_errors

    with show_errors():
        app()


if __name__ == "__main__":
    main()
