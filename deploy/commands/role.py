"""`pdserve role`."""

from __future__ import annotations

import os

from rich.console import Console

from cluster.roles import ROLES, RoleName
from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import default_store
from deploy.commands.scale import TIMEOUT_S
from deploy.control_client import ControlClient
from deploy.errors import CommandError
from rpc import control_pb2


def run(name: str, worker: str, role: RoleName) -> None:
    state = default_store(os.environ).read(name)
    console = Console(highlight=False)
    with (
        ControlClient(state.controller_address, ClusterAccess.of(state).inside) as client,
        console.status(f"{worker} finishes what runs there …"),
    ):
        previous = change_role(client, worker, role)
    console.print(f"{worker}: {previous} → {role}", markup=False)


def change_role(client: ControlClient, worker: str, role: RoleName) -> str:
    """The role before, once the worker is ready in the new one. Raises CommandError."""
    before = _find(client, worker)
    if before is None:
        raise CommandError(f"no worker is called {worker!r}: see pdserve status")
    epoch = client.set_role(worker, ROLES[role], before.member.role_epoch)
    for _ in client.changes(TIMEOUT_S):
        now = _find(client, worker)
        if now is None or now.member.role_epoch not in (before.member.role_epoch, epoch):
            raise CommandError(f"{worker} was changed by somebody else meanwhile: see pdserve status")
        if now.member.state == control_pb2.WORKER_FAILED:
            raise CommandError(f"{worker} could not start as {role}: {now.last_error}; see pdserve logs {worker}")
        if (now.member.role_epoch, now.member.state) == (epoch, control_pb2.WORKER_READY):
            return next(each for each, number in ROLES.items() if number == before.member.role)
    raise CommandError(f"not done within {TIMEOUT_S:g} s: see pdserve status")


def _find(client: ControlClient, worker: str) -> control_pb2.WorkerInfo | None:
    return next((info for info in client.list_workers().workers if info.member.worker == worker), None)
