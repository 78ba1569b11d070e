"""The hosts and ports a cluster wants, checked before anything is started; a taken one is named with who has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deploy.cluster_state import CLUSTER_VARIABLE, StateStore
from deploy.errors import CommandError
from deploy.ports import is_free, listener
from deploy.processes import command_of, environment_of

MOST_COMMAND_CHARACTERS = 80


class PortTakenError(CommandError):
    """Somebody listens there already; the message says who, and what to do."""


class HostError(CommandError):
    """Nothing can listen at a host; the message says why, and what to set."""


@dataclass(frozen=True, slots=True)
class WantedPort:
    setting: str  # as in `proxy.http_port`; its host is `proxy.host`
    host: str
    port: int


def check_ports(wanted: Iterable[WantedPort], store: StateStore) -> None:
    """Raises PortTakenError, HostError."""
    for want in wanted:
        try:
            free = is_free(want.host, want.port)
        except PermissionError as error:
            raise PortTakenError(
                f"port {want.port} ({want.setting}) needs rights that this user has not: set one above 1023"
            ) from error
        except OSError as error:
            setting = f"{want.setting.rpartition('.')[0]}.host"
            reason = error.strerror or str(error)
            raise HostError(
                f"{setting} is {want.host!r}, where this machine cannot listen ({reason}): "
                "set one of its own addresses, or 127.0.0.1"
            ) from error
        if not free:
            raise PortTakenError(f"port {want.port} ({want.setting}) is taken by {_owner(want.port, store)}")


def _owner(port: int, store: StateStore) -> str:
    for state in store.all():
        if port in state.ports.values() and state.is_alive:
            return f"the cluster {state.name!r}: end it with `pdserve down --name {state.name}`, or set another port"
    pid = listener(port)
    if pid is None:
        return "another process: end it, or set another port"
    who = f"process {pid} ({command_of(pid)[:MOST_COMMAND_CHARACTERS]})"
    environment = environment_of(pid)
    if CLUSTER_VARIABLE not in environment:
        return f"{who}: end it, or set another port"
    where = environment.get("XDG_STATE_HOME")
    command = f"XDG_STATE_HOME={where} pdserve down" if where else "env -u XDG_STATE_HOME pdserve down"
    return f"{who} of a cluster with another state folder: end it with `{command}`, or set another port"
