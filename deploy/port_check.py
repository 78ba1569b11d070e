"""The ports a cluster wants, checked before anything is started; a taken one is named with who has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deploy.cluster_state import StateStore
from deploy.errors import CommandError
from deploy.ports import is_free, listener
from deploy.processes import command_of

MOST_COMMAND_CHARACTERS = 80


class PortTakenError(CommandError):
    """Somebody listens there already; the message says who, and what to do."""


@dataclass(frozen=True, slots=True)
class WantedPort:
    setting: str  # as in `proxy.http_port`
    host: str
    port: int


def check_ports(wanted: Iterable[WantedPort], store: StateStore) -> None:
    """Raises PortTakenError, and OSError for a host that is not this machine's."""
    for want in wanted:
        if not is_free(want.host, want.port):
            raise PortTakenError(f"port {want.port} ({want.setting}) is taken by {_owner(want.port, store)}")


def _owner(port: int, store: StateStore) -> str:
    for state in store.all():
        if port in state.ports.values() and state.is_alive:
            return f"the cluster {state.name!r}: end it with `pdserve down --name {state.name}`, or set another port"
    pid = listener(port)
    who = "another process" if pid is None else f"process {pid} ({command_of(pid)[:MOST_COMMAND_CHARACTERS]})"
    return f"{who}: end it, or set another port"
