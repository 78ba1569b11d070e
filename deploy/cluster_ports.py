"""Where the parts of a cluster are to listen, out of its configuration."""

from __future__ import annotations

from deploy.config import DeployConfig
from deploy.port_check import WantedPort
from deploy.ports import free_ports
from deploy.prometheus import PROMETHEUS_HOST


def listening_hosts(config: DeployConfig) -> list[WantedPort]:
    """One port of 0 for each, to be checked before `with_ports`."""
    return [
        WantedPort("cluster.controller_port", config.cluster.host, 0),
        WantedPort("proxy.http_port", config.proxy.host, 0),
    ]


def wanted_ports(config: DeployConfig, *, with_prometheus: bool) -> list[WantedPort]:
    """The controller's is first."""
    cluster, proxy = config.cluster, config.proxy
    ports = [
        WantedPort("cluster.controller_port", cluster.host, cluster.controller_port),
        WantedPort("proxy.http_port", proxy.host, proxy.http_port),
        WantedPort("proxy.grpc_port", proxy.host, proxy.grpc_port),
    ]
    if with_prometheus:
        ports.append(WantedPort("prometheus.port", PROMETHEUS_HOST, config.prometheus.port))
    return ports


def with_ports(config: DeployConfig) -> DeployConfig:
    """Of the cluster and the proxy, a port of 0 becomes a free one."""
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
