"""A Prometheus beside a cluster, when one is installed: the shipped settings with this cluster's address."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import ClusterState
from deploy.errors import CommandError
from deploy.processes import ProcessReference, reference

PROMETHEUS_HOST = "127.0.0.1"
SETTINGS_FILE = Path(__file__).parent / "prometheus.yml"
ALERTS_FILE = Path(__file__).parent / "alerts.yml"


class NoPrometheusError(CommandError):
    """None is installed; the message says what to do."""


def find_prometheus() -> str:
    """Its path. Raises NoPrometheusError."""
    found = shutil.which("prometheus")
    if found is None:
        raise NoPrometheusError("--with-prometheus: no `prometheus` on PATH; install it, or leave the option out")
    return found


def start_prometheus(state: ClusterState, environment: Mapping[str, str]) -> ProcessReference:
    folder = Path(state.folder) / "prometheus"
    folder.mkdir()
    settings = folder / "prometheus.yml"
    settings.write_text(settings_for(state, ClusterAccess.of(state)))
    shutil.copy(ALERTS_FILE, folder)
    with (state.log_dir / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(
            [
                find_prometheus(),
                f"--config.file={settings}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={PROMETHEUS_HOST}:{state.prometheus_port}",
            ],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return reference(process.pid)


def settings_for(state: ClusterState, access: ClusterAccess) -> str:
    """The shipped settings, with targets from this cluster's proxy; its key goes to the proxy only."""
    settings = yaml.safe_load(SETTINGS_FILE.read_text())
    (job,) = settings["scrape_configs"]
    for discovery in job["http_sd_configs"]:
        discovery.update(url=f"{state.http_url}/prometheus/targets", **_locks(state, access))
    if _locks(state, access):
        of_proxy = {"source_labels": ["role"], "regex": "proxy"}
        scheme = state.http_url.partition(":")[0]
        workers = {**job, "job_name": "pdserve-workers", "relabel_configs": [{**of_proxy, "action": "drop"}]}
        job.update(relabel_configs=[{**of_proxy, "action": "keep"}], scheme=scheme, **_locks(state, access))
        settings["scrape_configs"].append(workers)
    return yaml.safe_dump(settings, sort_keys=False)


def _locks(state: ClusterState, access: ClusterAccess) -> dict[str, object]:
    locks: dict[str, object] = {}
    if state.operator_key_file is not None:
        locks["authorization"] = {"credentials_file": state.operator_key_file}
    if state.tls_cert is not None and access.proxy is not None:
        locks["tls_config"] = {"ca_file": state.tls_cert, "server_name": access.proxy.server_name}
    return locks
