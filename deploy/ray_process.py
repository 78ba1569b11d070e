"""Ray on one machine, as the head of a cluster or as a node that joins one.

`ray stop` ends every Ray on a machine; here the one `ray start --block` process is the whole of it and ends with it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

from deploy.errors import CommandError
from deploy.processes import ProcessReference, reference

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
OBJECT_STORE_BYTES = 80_000_000  # Ray's least; nothing of ours goes through it
# What Ray's command says to whoever typed it: among others `ray stop`, which would end every Ray on the machine.
CONSOLE_ADVICE = re.compile(r"\t(INFO|SUCC) (scripts|cli_output_helpers|usage_lib)\.py:\d+ -- ")


class RayStartError(CommandError):
    """Ray did not start; the message holds its last words."""


class RayProcess:
    """One below `folder`. `environment` is for it and for whoever connects to it; `token`: a file, the cluster's."""

    def __init__(self, folder: Path, environment: Mapping[str, str], token: Path) -> None:
        self._session = folder / "ray"
        self._log = folder / "logs" / "ray.log"
        self.environment = {
            **environment,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # the controller has drained what there was
            "RAY_prestart_worker_first_driver": "false",  # idle processes would only take memory
            "RAY_enable_worker_prestart": "false",
            "RAY_worker_niceness": "0",  # by default Ray's workers, so the proxy too, yield to everything else
        }

    def start(self, arguments: Sequence[str]) -> tuple[ProcessReference, str]:
        """The process, and the address of the cluster's Ray. Raises RayStartError."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        address_file = self._session / "ray_current_cluster"  # Ray writes it when it is up
        address_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command(arguments),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ray = reference(process.pid)
        deadline = monotonic() + START_TIMEOUT_S
        try:
            while monotonic() < deadline and process.poll() is None:
                if address_file.exists() and (address := address_file.read_text().strip()):
                    return ray, address
                sleep(POLL_S)
        except KeyboardInterrupt:
            ray.stop(STOP_TIMEOUT_S)
            raise
        ray.stop(STOP_TIMEOUT_S)
        raise RayStartError("Ray did not start; its last lines:\n" + last_lines(self._log, 20))

    def _command(self, arguments: Sequence[str]) -> list[str]:
        ray = Path(sys.executable).with_name("ray")
        return [
            str(ray), "start", "--block",
            *arguments,
            "--dashboard-agent-listen-port", "0",
            "--min-worker-port", "0", "--max-worker-port", "0",
            "--temp-dir", str(self._session),
            "--object-store-memory", str(OBJECT_STORE_BYTES),
            "--include-log-monitor", "false",
            "--disable-usage-stats",
            "--log-style", "record",
        ]  # fmt: skip


def last_lines(file: Path, count: int, leave_out: re.Pattern[str] | None = None) -> str:
    """Of a log that may not exist yet."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join([line for line in lines if leave_out is None or not leave_out.search(line)][-count:])
