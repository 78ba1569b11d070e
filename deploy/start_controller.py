"""`python -m deploy.start_controller RAY_ADDRESS NAMESPACE SETTINGS` starts the controller's actor, when the machines
that it is to have are there, and waits until it serves.

A process of its own, so that the command that brings a cluster up needs neither Ray's memory nor its environment.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import ray
from ray.exceptions import RayError

from cluster.controller_actor import start_controller
from cluster.nodes import living_nodes
from cluster.placements import Node
from cluster.spec import ClusterSpec, ControllerSettings
from deploy.errors import CommandError
from deploy.gpu_check import check_gpus
from security.address import is_loopback

READY_TIMEOUT_S = 60.0
NODES_POLL_S = 0.2


class NoSuchHostError(CommandError):
    """The controller has no machine to run on; the message says which there are."""


class NodesMissingError(CommandError):
    """Not enough machines have joined; the message says how many did."""


def main() -> None:
    address, namespace, file = sys.argv[1:]
    settings = ControllerSettings.model_validate_json(Path(file).read_text())
    ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)
    try:
        wait_for_nodes(settings.spec)
        check_gpus(settings.spec, int(ray.cluster_resources().get("GPU", 0)))
        controller = start_controller(settings, controllers_node(settings.spec.host, living_nodes()))
    except CommandError as error:
        sys.exit(str(error))
    try:
        print(ray.get(controller.wait_ready.remote(READY_TIMEOUT_S)))
    except RayError as error:
        sys.exit(f"the controller did not start: {str(error).strip().splitlines()[-1]}")


def controllers_node(host: str, nodes: Sequence[Node]) -> str:
    """Its id: the machine with that address. Raises NoSuchHostError."""
    found = nodes[:1] if is_loopback(host) else [node for node in nodes if node.address == host]
    if not found:
        others = ", ".join(node.address for node in nodes) or "none"
        raise NoSuchHostError(
            f"no machine of this Ray has the address {host} (cluster.host), where the controller is to listen: "
            f"set one of {others}"
        )
    return found[0].id


def wait_for_nodes(spec: ClusterSpec) -> None:
    """Raises NodesMissingError after `start_timeout_s`."""
    deadline = monotonic() + spec.start_timeout_s
    while (num_nodes := len(living_nodes())) < spec.num_nodes:
        if monotonic() > deadline:
            raise NodesMissingError(
                f"{num_nodes} machines are there after {spec.start_timeout_s:g} s, of the {spec.num_nodes} in "
                "cluster.num_nodes: `pdserve join` brings one in"
            )
        sleep(NODES_POLL_S)


if __name__ == "__main__":
    main()
