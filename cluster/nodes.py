"""The machines of a cluster, which Ray calls nodes: on which one an actor starts, and where it listens there.

A worker goes where the fewest of its role are, then the fewest of all; a GPU is Ray's to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.spec import RoleName
from security.address import is_loopback


class Placements:
    """Maintains on which node each living worker is, by incarnation."""

    def __init__(self) -> None:
        self._placed: dict[str, tuple[RoleName, str]] = {}

    def choose(self, role: RoleName, nodes: Sequence[str]) -> str:
        """One of `nodes`; of equals the first."""

        def load(node: str) -> tuple[int, int]:
            here = [placed_role for placed_role, placed_on in self._placed.values() if placed_on == node]
            return here.count(role), len(here)

        return min(nodes, key=load)

    def add(self, incarnation: str, role: RoleName, node: str) -> None:
        self._placed[incarnation] = (role, node)

    def forget(self, incarnation: str) -> None:
        self._placed.pop(incarnation, None)


def living_nodes() -> list[str]:
    """Ids of those that Ray has heard of lately, this process's own first."""
    alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    own = own_node()
    return sorted(alive, key=lambda node: node != own)


def own_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def only_on(node: str) -> Any:
    """And nowhere else; not `soft`, which Ray ignores for an actor that asks for no CPU."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def listening_address(cluster_host: str) -> str:
    """Where an actor's servers bind: loopback for a cluster that is all on it, else its node's address."""
    return cluster_host if is_loopback(cluster_host) else str(ray.util.get_node_ip_address())
