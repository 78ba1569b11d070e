"""A Prometheus beside a cluster, when one is installed: the shipped settings with this cluster's address."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from deploy.cluster_state import ClusterState
from deploy.errors import CommandError
from deploy.processes import ProcessReference, reference

PROMETHEUS_HOST = "127.0.0.1"
SETTINGS_FILE = Path(__file__).parent / "prometheus.yml"


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
    settings.write_text(settings_for(state.http_url))
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


def settings_for(http_url: str) -> str:
    """The shipped settings, with targets from the proxy at `http_url`."""
    settings = yaml.safe_load(SETTINGS_FILE.read_text())
    for job in settings["scrape_configs"]:
        for discovery in job["http_sd_configs"]:
            discovery["url"] = f"{http_url}/prometheus/targets"
    return yaml.safe_dump(settings, sort_keys=False)
