"""`pdserve join`."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from deploy.cluster_folder import make_folder
from deploy.cluster_state import CLUSTER_VARIABLE
from deploy.errors import CommandError
from deploy.interrupts import Interrupts
from deploy.processes import ProcessReference
from deploy.ray_config import start_arguments
from deploy.ray_process import STOP_TIMEOUT_S, RayProcess
from deploy.steps import Steps
from deploy.tear_down import end_leftovers


class JoinError(CommandError):
    """This machine cannot join; the message says why."""


def run(address: str, token_file: Path, host: str | None, labels: Sequence[str], resources: Sequence[str]) -> None:
    """`labels` and `resources`: NAME=VALUE each."""
    own = start_arguments(read_labels(labels), read_resources(resources))
    console = Console(highlight=False)
    own_address = host or address_towards(address)
    if not os.access(token_file, os.R_OK):
        raise JoinError(f"--token-file {token_file} cannot be read: copy the token that `pdserve up` named")
    interrupts = Interrupts()
    interrupts.install()
    mark, folder = secrets.token_hex(8), make_folder()
    node = RayProcess(folder, {**os.environ, CLUSTER_VARIABLE: mark}, token_file.absolute())
    process: ProcessReference | None = None
    try:
        with Steps(console) as steps, suppress(KeyboardInterrupt):
            steps.say(f"joining {address}")
            process, _ = node.start(["--address", address, "--node-ip-address", own_address, *own])
            steps.hide()
            console.print(f"{own_address} is part of the cluster at {address}. Ctrl-C takes it out.")
            process.wait()
            console.print("The cluster has ended, or lost this machine.")
    finally:
        interrupts.end()
        if process is not None:
            process.stop(STOP_TIMEOUT_S)
        end_leftovers(mark, process)
        shutil.rmtree(folder, ignore_errors=True)


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """Raises JoinError."""
    return dict(_named("--label", texts))


def read_resources(texts: Sequence[str]) -> dict[str, float]:
    """Raises JoinError."""
    amounts = {}
    for name, value in _named("--resource", texts):
        try:
            amounts[name] = float(value)
        except ValueError as error:
            raise JoinError(f"--resource {name}={value}: {value} is no number") from error
    return amounts


def _named(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Raises JoinError."""
    pairs = [text.partition("=") for text in texts]
    for (name, equals, value), text in zip(pairs, texts, strict=True):
        if not name or not equals or not value:
            raise JoinError(f"{option} {text}: write it as NAME=VALUE")
    return [(name, value) for name, _, value in pairs]


def address_towards(address: str) -> str:
    """This machine's own address on the way to HOST:PORT. Raises JoinError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise JoinError(f"{address} is no address of a cluster: write it as HOST:PORT")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as towards:  # of UDP, so nothing is sent
            towards.connect(target)
            return str(towards.getsockname()[0])
    except OSError as error:
        raise JoinError(f"{host} cannot be reached from here: {error.strerror or error}") from error
