"""`pdserve replace`: every worker gives way to a new one while the cluster serves, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console

from cluster.roles import ROLES, RoleName
from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import default_store
from deploy.commands.scale import wait_for
from deploy.control_client import ControlClient
from rpc import control_pb2


def run(name: str) -> None:
    state = default_store(os.environ).read(name)
    console = Console(highlight=False)
    with (
        ControlClient(state.controller_address, ClusterAccess.of(state).inside) as client,
        console.status("replacing …"),
    ):
        replace_all(client, lambda worker: console.print(f"{worker} is replaced", markup=False))


def replace_all(client: ControlClient, say: Callable[[str], None]) -> None:
    """Each pool has one worker more meanwhile, and its old size afterwards, also when it fails. Raises CommandError.

    A pool whose groups are full has one less meanwhile.
    """
    listing = client.list_workers()
    for role, number in ROLES.items():
        workers = [info.member for info in listing.workers if info.member.role == number]
        if workers:
            size = listing.desired[role]
            larger = size if size >= listing.most.get(role, size + 1) else size + 1
            _replace_pool(client, role, size, larger, workers, say)


def _replace_pool(
    client: ControlClient,
    role: RoleName,
    size: int,
    larger: int,
    workers: list[control_pb2.Member],
    say: Callable[[str], None],
) -> None:
    client.scale(ROLES[role], larger)
    try:
        wait_for(client, {role: larger})
        for worker in workers:
            client.drain(worker.worker)
            wait_for(client, {role: larger})
            say(worker.worker)
    finally:
        client.scale(ROLES[role], size)
    wait_for(client, {role: size})
