"""The Ray head of one cluster: its own ports, session folder and token, so that it is neighbour to any other Ray.

`ray stop` ends every Ray on a machine; here the one `ray start --block` process is the whole of it and ends with it.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

from deploy.errors import CommandError
from deploy.ports import free_ports
from deploy.processes import ProcessReference, reference

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
OBJECT_STORE_BYTES = 80_000_000  # Ray's least; nothing of ours goes through it
# What Ray's command says to whoever typed it: among others `ray stop`, which would end every Ray on the machine.
CONSOLE_ADVICE = re.compile(r"\t(INFO|SUCC) (scripts|cli_output_helpers|usage_lib)\.py:\d+ -- ")
TRIES = 3  # a port found free may be taken before Ray has it


class RayHeadError(CommandError):
    """The head did not start; the message holds its last words."""


class RayHead:
    """One head below `folder`. `environment` is for it and for whoever connects to it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._session = folder / "ray"
        self._log = folder / "logs" / "ray.log"
        self._token = folder / "auth_token"
        self.environment = {
            **environment,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # the controller has drained what there was
            "RAY_prestart_worker_first_driver": "false",  # idle processes would only take memory
            "RAY_enable_worker_prestart": "false",
            "RAY_worker_niceness": "0",  # by default Ray's workers, so the proxy too, yield to everything else
        }

    def start(self) -> tuple[ProcessReference, str]:
        """The head's process and Ray's address. Raises RayHeadError."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._write_token()
        for _ in range(TRIES - 1):
            try:
                return self._start_once()
            except RayHeadError:
                continue
        return self._start_once()

    def _start_once(self) -> tuple[ProcessReference, str]:
        address_file = self._session / "ray_current_cluster"  # Ray writes it when the head is up
        address_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command(),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        head = reference(process.pid)
        deadline = monotonic() + START_TIMEOUT_S
        try:
            while monotonic() < deadline and process.poll() is None:
                if address_file.exists() and (address := address_file.read_text().strip()):
                    return head, address
                sleep(POLL_S)
        except KeyboardInterrupt:
            head.stop(STOP_TIMEOUT_S)
            raise
        head.stop(STOP_TIMEOUT_S)
        raise RayHeadError("Ray did not start; its last lines:\n" + last_lines(self._log, 20))

    def _command(self) -> list[str]:
        gcs_port, client_port, dashboard_port = free_ports([""] * 3)
        ray = Path(sys.executable).with_name("ray")
        return [
            str(ray), "start", "--head", "--block",
            "--port", str(gcs_port),
            "--ray-client-server-port", str(client_port),
            "--dashboard-port", str(dashboard_port),
            "--dashboard-agent-listen-port", "0",
            "--min-worker-port", "0", "--max-worker-port", "0",
            "--temp-dir", str(self._session),
            "--object-store-memory", str(OBJECT_STORE_BYTES),
            "--include-dashboard", "false",
            "--include-log-monitor", "false",
            "--no-monitor",
            "--disable-usage-stats",
            "--log-style", "record",
        ]  # fmt: skip

    def _write_token(self) -> None:
        descriptor = os.open(self._token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))


def last_lines(file: Path, count: int, leave_out: re.Pattern[str] | None = None) -> str:
    """Of a log that may not exist yet."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join([line for line in lines if leave_out is None or not leave_out.search(line)][-count:])
