"""What is known of the clusters of this user on this machine: one JSON file for each.

The file is there from before the first process starts until after the last one is gone.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from deploy.errors import CommandError
from deploy.processes import ProcessReference
from security.address import join_host_port

logger = logging.getLogger(__name__)
CLUSTER_VARIABLE = "PDSERVE_CLUSTER"  # marks every process of a cluster, so that none is ever left
START_BESIDE = "pdserve up --name OTHER --set cluster.controller_port=0 --set proxy.grpc_port=0 --set proxy.http_port=0"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One cluster. `launcher` is the command that brings it up; `head` the Ray head once it runs."""

    name: str
    mark: str  # value of CLUSTER_VARIABLE
    folder: str  # everything it writes: logs, Ray's session, token
    model: str
    config: str  # the YAML file
    host: str  # by which this machine reaches the proxy
    controller_address: str  # host:port
    controller_port: int
    grpc_port: int
    http_port: int
    prometheus_port: int | None
    drain_timeout_s: float  # what runs may finish in it
    shutdown_timeout_s: float  # the whole cluster has ended in it
    started_at: float  # Unix seconds
    launcher: ProcessReference
    head: ProcessReference | None = None
    prometheus: ProcessReference | None = None
    ray_address: str = ""
    owns_ray: bool = True  # it ends with the cluster
    has_proxy: bool = True  # of its own
    is_up: bool = False  # a generation has worked
    tls: str | None = None  # the folder cluster.tls
    tls_cert: str | None = None  # the proxy's
    keys_file: str | None = None
    operator_key_file: str | None = None  # where there are keys

    @property
    def log_dir(self) -> Path:
        return Path(self.folder) / "logs"

    @property
    def namespace(self) -> str:
        """Of its actors in Ray, so that several clusters have room in one."""
        return f"pdserve-{self.mark}"

    @property
    def http_url(self) -> str:
        scheme = "http" if self.tls_cert is None else "https"
        return f"{scheme}://{join_host_port(self.host, self.http_port)}"

    @property
    def grpc_address(self) -> str:
        return join_host_port(self.host, self.grpc_port)

    @property
    def is_alive(self) -> bool:
        """Whether its head runs, or it is being brought up; on another's Ray, until it is taken down."""
        if self.head is not None:
            return self.head.is_alive
        return self.launcher.is_alive or (self.is_up and not self.owns_ray)

    @property
    def ports(self) -> dict[str, int]:
        """By the name of the setting."""
        ports = {
            "cluster.controller_port": self.controller_port,
            "proxy.grpc_port": self.grpc_port,
            "proxy.http_port": self.http_port,
        }
        if not self.has_proxy:
            ports = {"cluster.controller_port": self.controller_port}
        return ports if self.prometheus_port is None else {**ports, "prometheus.port": self.prometheus_port}


class ClusterNameError(CommandError):
    """A name that no cluster can have; the message says which could."""


class NoClusterError(CommandError):
    """No cluster of this name; the message says what to do."""


class ClusterExistsError(CommandError):
    """A cluster of this name is there already; the message says what to do."""


class StateFileError(CommandError):
    """A state file cannot be used; the message names it and says what to do."""


class StateStore:
    """Maintains the folder of state files; each appears whole and changes whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, state: ClusterState) -> None:
        """Writes the first state. Raises ClusterExistsError when the name is taken."""
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._file(state.name).with_suffix(f".{state.mark}.draft")
        try:
            draft.write_text(_to_json(state))
            os.link(draft, self._file(state.name))
        except FileExistsError as error:
            raise ClusterExistsError(
                f"a cluster named {state.name!r} is there already: `pdserve down --name {state.name}` ends it, "
                f"`{START_BESIDE}` starts one beside it"
            ) from error
        finally:
            draft.unlink(missing_ok=True)

    def update(self, state: ClusterState, **changes: object) -> ClusterState:
        changed = replace(state, **changes)  # type: ignore[arg-type]  # the fields' own types
        draft = self._file(state.name).with_suffix(".draft")
        draft.write_text(_to_json(changed))
        os.replace(draft, self._file(state.name))
        return changed

    def read(self, name: str) -> ClusterState:
        """Raises NoClusterError, StateFileError."""
        state = self.find(name)
        if state is None:
            others = sorted(state.name for state in self.all())
            running = ", ".join(others) or "none"
            action = f"name it: --name {others[0]}" if others else "start it: pdserve up"
            raise NoClusterError(f"no cluster named {name!r} runs here (running: {running}); {action}")
        return state

    def find(self, name: str) -> ClusterState | None:
        """Raises StateFileError."""
        return _read(self._file(name))

    def all(self) -> list[ClusterState]:
        """A file that cannot be used is named in the log, and left out."""
        states = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                state = _read(file)
            except StateFileError as error:
                logger.warning("%s", error)
                continue
            if state is not None:
                states.append(state)
        return states

    def kept_logs(self, name: str) -> Path:
        """Where the logs of the last launch of this name that failed are."""
        return self._file(name).with_suffix("") / "failed-logs"

    def forget(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
            raise ClusterNameError(f"--name {name!r}: use up to 40 letters, digits, - and _")
        return self._folder / f"{name}.json"


def default_store(environment: Mapping[str, str]) -> StateStore:
    base = Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return StateStore(base / "pdserve")


def _to_json(state: ClusterState) -> str:
    return json.dumps(asdict(state), indent=2) + "\n"


def _read(file: Path) -> ClusterState | None:
    """None when it is not there (any more). Raises StateFileError."""
    try:
        return _from_json(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateFileError(
            f"{file} is no state of a cluster that this version can read ({type(error).__name__}: {error}): "
            "end what runs of that cluster, then remove the file"
        ) from error


def _from_json(text: str) -> ClusterState:
    fields = json.loads(text)
    for name in ("launcher", "head", "prometheus"):
        if fields[name] is not None:
            fields[name] = ProcessReference(**fields[name])
    return ClusterState(**fields)
