"""The Ray head of one cluster: its own ports, session folder and token, so that it is neighbour to any other Ray."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from deploy.ports import free_ports
from deploy.processes import ProcessReference
from deploy.ray_config import RayConfig, start_arguments
from deploy.ray_process import RayProcess, RayStartError
from security.address import is_loopback

TRIES = 3  # a port found free may be taken before Ray has it


class RayHead:
    """One head below `folder`, at `host` for other machines. `environment` is for whoever connects to it, too."""

    def __init__(self, folder: Path, environment: Mapping[str, str], host: str, config: RayConfig) -> None:
        self._config = config
        self._token = folder / "auth_token"
        self._host = host
        self._ray = RayProcess(folder, environment, self._token)

    @property
    def environment(self) -> dict[str, str]:
        return self._ray.environment

    def start(self) -> tuple[ProcessReference, str]:
        """The head's process and Ray's address. Raises RayStartError."""
        self._write_token()
        for _ in range(TRIES - 1):
            try:
                return self._ray.start(self._arguments())
            except RayStartError:
                continue
        return self._ray.start(self._arguments())

    def _arguments(self) -> list[str]:
        gcs_port, client_port, dashboard_port = free_ports([""] * 3)
        own_address = [] if is_loopback(self._host) else ["--node-ip-address", self._host]
        return [
            "--head",
            *own_address,
            *start_arguments(self._config.labels, self._config.resources),
            "--port", str(gcs_port),
            "--ray-client-server-port", str(client_port),
            "--dashboard-port", str(dashboard_port),
            "--include-dashboard", "false",
            "--no-monitor",
        ]  # fmt: skip

    def _write_token(self) -> None:
        descriptor = os.open(self._token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
