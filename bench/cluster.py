"""A real cluster for the time of a measurement: `pdserve up` with a configuration file, and `pdserve down` after it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAME = "bench"
UP_TIMEOUT_S = 300
DOWN_TIMEOUT_S = 90
PORTS = {"proxy.http_port": 0, "proxy.grpc_port": 0, "cluster.controller_port": 0}  # free ones


@contextmanager
def cluster(config: Path, settings: Mapping[str, object] | None = None) -> Iterator[str]:
    """The URL of its HTTP endpoint. `settings` are laid over the file, as `--set` does."""
    with running(config, settings or {}) as status:
        yield str(status["proxy"]["http"])


@contextmanager
def running(config: Path, settings: Mapping[str, object], name: str = NAME, *options: str) -> Iterator[dict[str, Any]]:
    """What `pdserve status --json` says of it when it is up. `options`: further ones of `pdserve up`."""
    arguments = [f"--set={field}={json.dumps(value)}" for field, value in {**PORTS, **settings}.items()]
    _pdserve("up", "--config", str(config), "--name", name, "--detach", *options, *arguments, timeout_s=UP_TIMEOUT_S)
    try:
        status: dict[str, Any] = json.loads(_pdserve("status", "--json", "--name", name, timeout_s=30))
        yield status
    finally:
        _pdserve("down", "--name", name, timeout_s=DOWN_TIMEOUT_S)


def _pdserve(*arguments: str, timeout_s: float) -> str:
    """What it printed. Raises RuntimeError with it when it failed."""
    command = [sys.executable, "-m", "deploy.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pdserve {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
