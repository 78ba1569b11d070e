"""`pdserve keys …` and `pdserve certs`: names and help texts; a command's code is imported when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deploy.cluster_name import Name

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the API keys of a cluster.")

File = Annotated[
    Path | None,
    typer.Option(
        "--file", help="Of the keys; by default the running cluster's.", metavar="FILE", show_default=False
    ),
]  # fmt: skip
KeyName = Annotated[str, typer.Argument(help="Of the key, as in alice or batch-jobs.", metavar="NAME")]
Limit = Annotated[int | None, typer.Option(min=1, help="Of the tenant, all its keys together.", metavar="N")]


class ScopeName(StrEnum):
    INFERENCE = "inference"
    OBSERVE = "observe"


@app.command()
def add(
    name: KeyName,
    file: File = None,
    cluster: Name = "default",
    tenant: Annotated[str | None, typer.Option(help="Whom it speaks for; by default NAME.", metavar="TENANT")] = None,
    may_set_tenant: Annotated[
        bool, typer.Option("--may-set-tenant", help="It may name any tenant (x-tenant), as a gateway does.")
    ] = False,
    scope: Annotated[
        list[ScopeName] | None, typer.Option(help="inference by default; repeatable.", show_default=False)
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="It expires after so many.", metavar="N")] = None,
    max_queued: Limit = None,
    max_running: Limit = None,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
) -> None:
    """Make a key and print it, once. A proxy that runs takes it within a second."""
    from deploy.commands import keys
    from proxy.access.caller import Scope

    limits = {
        "max_queued": max_queued,
        "max_running": max_running,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    scopes = [Scope(each) for each in scope or [ScopeName.INFERENCE]]
    keys.add(keys.find_file(file, cluster), name, tenant, scopes, days, limits, may_set_tenant=may_set_tenant)


@app.command("list")
def show(file: File = None, cluster: Name = "default") -> None:
    """Show who has a key, what it may do, and whether it still holds. No key can be seen again."""
    from deploy.commands import keys

    keys.show(keys.find_file(file, cluster))


@app.command()
def revoke(name: KeyName, file: File = None, cluster: Name = "default") -> None:
    """Take a key's holder out. What already runs may finish."""
    from deploy.commands import keys

    keys.revoke(keys.find_file(file, cluster), name)


def certs(
    folder: Annotated[Path, typer.Argument(help="A new one.", metavar="DIR")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="A name or address of the proxy for clients; repeatable.",
            metavar="HOST",
            show_default="this machine's name, localhost, 127.0.0.1 and ::1",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=825, help="How long they hold.", metavar="N")] = 397,
) -> None:
    """Make the certificates of a new cluster: its authority, its processes' own, and the one that clients see."""
    import socket

    from deploy.commands.certs import run

    run(folder, host or [socket.gethostname(), "localhost", "127.0.0.1", "::1"], days)
