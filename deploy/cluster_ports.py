"""Where the parts of a cluster are to listen, out of its configuration."""

from __future__ import annotations

from deploy.config import DeployConfig
from deploy.port_check import WantedPort
from deploy.ports import free_ports
from deploy.prometheus import PROMETHEUS_HOST
from security.address import is_loopback


def listening_hosts(config: DeployConfig) -> list[WantedPort]:
    """One port of 0 for each, to be checked before `with_ports`."""
    return [WantedPort(want.setting, want.host, 0) for want in wanted_ports(config, with_prometheus=False)]


def wanted_ports(config: DeployConfig, *, with_prometheus: bool) -> list[WantedPort]:
    """The controller's is first. None that another machine is to have."""
    cluster, proxy = config.cluster, config.proxy
    ports = []
    if not is_elsewhere(config):
        ports.append(WantedPort("cluster.controller_port", cluster.host, cluster.controller_port))
    if cluster.starts_proxy and not is_elsewhere(config):
        ports.append(WantedPort("proxy.http_port", proxy.host, proxy.http_port))
        ports.append(WantedPort("proxy.grpc_port", proxy.host, proxy.grpc_port))
    if with_prometheus:
        ports.append(WantedPort("prometheus.port", PROMETHEUS_HOST, config.prometheus.port))
    return ports


def is_elsewhere(config: DeployConfig) -> bool:
    """Whether controller and proxy start on a machine that need not be this one."""
    return config.ray.is_client and not is_loopback(config.cluster.host)


def with_ports(config: DeployConfig) -> DeployConfig:
    """Of the cluster and the proxy, a port of 0 becomes a free one."""
    if is_elsewhere(config):
        return config
    cluster, proxy = config.cluster, config.proxy
    controller_port, grpc_port, http_port = free_ports([cluster.host, proxy.host, proxy.host])
    return config.model_copy(
        update={
            "cluster": cluster.model_copy(update={"controller_port": cluster.controller_port or controller_port}),
            "proxy": proxy.model_copy(
                update={"grpc_port": proxy.grpc_port or grpc_port, "http_port": proxy.http_port or http_port}
            ),
        }
    )
