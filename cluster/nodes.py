"""The machines of a cluster, which Ray calls nodes: which there are, and where an actor listens on one."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.placements import Node
from security.address import is_loopback


def living_nodes() -> list[Node]:
    """Those that Ray has heard of lately, this process's own first."""
    alive = [
        Node(node["NodeID"], node["NodeManagerAddress"], node.get("Labels", {}), node["Resources"])
        for node in sorted(ray.nodes(), key=lambda node: str(node["NodeID"]))
        if node["Alive"]
    ]
    own = own_node()
    return sorted(alive, key=lambda node: node.id != own)


def own_node() -> str:
    """Through Ray's client port: the head's."""
    return str(ray.get_runtime_context().get_node_id())


def only_on(node: str) -> Any:
    """And nowhere else; not `soft`, which Ray ignores for an actor that asks for no CPU."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def listening_address(cluster_host: str) -> str:
    """Where an actor's servers bind: loopback for a cluster that is all on it, else its node's address."""
    return cluster_host if is_loopback(cluster_host) else str(ray.util.get_node_ip_address())
