"""The proxy of a cluster that is brought up: how the cluster starts it, and whether it is ready."""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

from cluster.spec import ProxySpec
from deploy.config import WILDCARDS, DeployConfig
from proxy.config import ProxyConfig, to_arguments
from security.address import join_host_port

STOP_MARGIN_S = 5.0
ASK_TIMEOUT_S = 2.0


def proxy_spec(config: DeployConfig, model_dir: Path, operator_key_file: Path | None) -> ProxySpec:
    cluster, proxy = config.cluster, config.proxy
    host = reachable(proxy.host)
    command = [
        sys.executable, "-m", "proxy",
        "--controller", join_host_port(cluster.host, cluster.controller_port),
        "--model-dir", str(model_dir),
        "--model-name", cluster.model_name,
        *to_arguments(proxy),
        "--log-format", cluster.logs.format,
    ]  # fmt: skip
    if cluster.tls is not None:
        command += ["--cluster-tls", str(cluster.tls)]
    if cluster.tracing.endpoint is not None:
        command += ["--trace-endpoint", cluster.tracing.endpoint]
        command += ["--trace-sample-ratio", str(cluster.tracing.sample_ratio)]
    if operator_key_file is not None:
        command += ["--operator-key-file", str(operator_key_file)]
    return ProxySpec(
        command=tuple(command),
        grpc_address=join_host_port(host, proxy.grpc_port),
        http_address=join_host_port(host, proxy.http_port),
        stop_timeout_s=stop_timeout_s(proxy),
        logs=cluster.logs,
    )


def stop_timeout_s(proxy: ProxyConfig) -> float:
    """From SIGTERM to SIGKILL."""
    return proxy.drain_timeout_s + STOP_MARGIN_S


def reachable(host: str) -> str:
    """The address by which this machine reaches a server bound to `host`."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}[host] if host in WILDCARDS else host


def is_ready(http_url: str, context: ssl.SSLContext | None) -> bool:
    """`context`: None where the port is plain."""
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    try:
        with urllib.request.build_opener(*handlers).open(f"{http_url}/ready", timeout=ASK_TIMEOUT_S):
            return True
    except (urllib.error.URLError, OSError):
        return False
