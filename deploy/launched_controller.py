"""The controller of a cluster that is brought up: a process of its own starts it in Ray, and says what went wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster.spec import ControllerSettings
from deploy.cluster_ports import wanted_ports
from deploy.cluster_state import ClusterState, StateStore
from deploy.config import DeployConfig
from deploy.launch_error import NUM_LOG_LINES, LaunchError
from deploy.port_check import check_ports
from deploy.ray_process import last_lines

TIMEOUT_S = 90.0


def start_controller(
    settings: ControllerSettings,
    config: DeployConfig,
    state: ClusterState,
    store: StateStore,
    environment: Mapping[str, str],
) -> None:
    """Returns when it serves. Raises LaunchError, and PortTakenError when somebody else has its port by then."""
    file = Path(state.folder) / "controller.json"
    file.write_text(settings.model_dump_json())
    command = [sys.executable, "-m", "deploy.start_controller", state.ray_address, state.namespace, str(file)]
    spec = settings.spec
    timeout_s = TIMEOUT_S + (spec.start_timeout_s if spec.num_nodes > 1 else 0.0)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"the controller did not start within {timeout_s:g} s") from error
    if done.returncode != 0:
        ports = wanted_ports(config, with_prometheus=False)[:1]
        check_ports(ports, store)  # two launches at once: the other has it
        said = last_lines(Path(settings.log_dir) / "controller.log", NUM_LOG_LINES)
        raise LaunchError("\n".join(part for part in (done.stderr.strip(), said) if part))
