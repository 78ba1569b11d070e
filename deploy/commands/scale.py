"""`pdserve scale`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from rich.console import Console

from cluster.roles import ROLES, RoleName
from deploy.cluster_access import ClusterAccess
from deploy.cluster_report import WorkerPart, worker_part
from deploy.cluster_state import default_store
from deploy.control_client import ControlClient
from deploy.errors import CommandError

TIMEOUT_S = 300.0


def run(name: str, sizes: list[str]) -> None:
    wanted = parse_sizes(sizes)
    state = default_store(os.environ).read(name)
    console = Console(highlight=False)
    with ControlClient(state.controller_address, ClusterAccess.of(state).inside) as client, console.status("scaling …"):
        for role, count in growth_first(wanted):
            previous = client.scale(ROLES[role], count)
            console.print(f"{role}: {previous} → {count}")
        wait_for(client, wanted)


def parse_sizes(sizes: Iterable[str]) -> dict[RoleName, int]:
    """Raises CommandError."""
    wanted: dict[RoleName, int] = {}
    for text in sizes:
        name, _, count = text.partition("=")
        role = next((role for role in ROLES if role == name), None)
        if role is None or not count.isdecimal():
            raise CommandError(f"{text!r} is no size: write prefill=N, decode=N, mixed=N or pool=N")
        wanted[role] = int(count)
    return wanted


def growth_first(wanted: Mapping[RoleName, int]) -> list[tuple[RoleName, int]]:
    """In the order to ask for: a pool that is to be empty last, since at no time may nobody generate."""
    return sorted(wanted.items(), key=lambda size: size[1] == 0)


def wait_for(client: ControlClient, wanted: Mapping[RoleName, int]) -> None:
    """Until each pool has its size and nobody leaves any more. Raises CommandError."""
    for _ in client.changes(TIMEOUT_S):
        workers = [worker_part(info) for info in client.list_workers().workers]
        for worker in workers:
            if worker["role"] in wanted and worker["state"] == "failed":
                raise CommandError(f"{worker['name']} could not start: {worker['last_error']}; see pdserve logs")
        if all(_states(workers, role) == ["ready"] * count for role, count in wanted.items()):
            return
    raise CommandError(f"not done within {TIMEOUT_S:g} s: see pdserve status")


def _states(workers: Iterable[WorkerPart], role: str) -> list[str]:
    return [worker["state"] for worker in workers if worker["role"] == role]
