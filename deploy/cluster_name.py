"""The option `--name` of every command that is about one cluster."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str, typer.Option("--name", help="Which cluster, when this machine runs several.", metavar="NAME")]
