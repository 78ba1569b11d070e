"""What is said of the configuration on this machine: its ports, its certificates and keys, its model."""

from __future__ import annotations

from deploy.cluster_ports import wanted_ports
from deploy.cluster_state import StateStore
from deploy.config import DeployConfig
from deploy.doctor.finding import Finding, error, fine, warning
from deploy.errors import CommandError
from deploy.port_check import PortTakenError, check_ports
from deploy.security_check import check_security


def ports(config: DeployConfig, store: StateStore) -> list[Finding]:
    """One for each; those of a cluster of this user that runs are as they should be."""
    running = {port: state.name for state in store.all() if state.is_alive for port in state.ports.values()}
    findings = []
    for want in wanted_ports(config, with_prometheus=False):
        what = f"port {want.port}"
        if want.port in running:
            findings.append(fine(what, f"{want.setting}; the cluster {running[want.port]!r} has it"))
            continue
        try:
            check_ports([want], store)
        except CommandError as wrong:
            fix = f"--set {want.setting}=0 takes a free one" if isinstance(wrong, PortTakenError) else "see the message"
            findings.append(error(what, str(wrong), fix))
        else:
            findings.append(fine(what, f"{want.setting}; free"))
    return findings


def security(config: DeployConfig) -> Finding:
    try:
        check_security(config)
    except CommandError as wrong:
        return error("keys and certificates", str(wrong), "`pdserve certs` and `pdserve keys add` make them")
    if config.proxy.insecure:
        return warning("keys and certificates", "proxy.insecure is true", "docs/security.md: five commands close it")
    return fine("keys and certificates", "as configured")
