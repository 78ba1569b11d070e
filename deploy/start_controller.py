"""`python -m deploy.start_controller RAY_ADDRESS SETTINGS` starts the controller's actor and waits until it serves.

A process of its own, so that the command that brings a cluster up needs neither Ray's memory nor its environment.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import ray
from ray.exceptions import RayError

from cluster.controller_actor import start_controller
from cluster.ray_launcher import NAMESPACE
from cluster.spec import ControllerSettings
from deploy.errors import CommandError
from deploy.gpu_check import check_gpus

READY_TIMEOUT_S = 60.0


def main() -> None:
    address, file = sys.argv[1:]
    settings = ControllerSettings.model_validate_json(Path(file).read_text())
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    try:
        check_gpus(settings.spec, int(ray.cluster_resources().get("GPU", 0)))
    except CommandError as error:
        sys.exit(str(error))
    controller = start_controller(settings)
    try:
        print(ray.get(controller.wait_ready.remote(READY_TIMEOUT_S)))
    except RayError as error:
        sys.exit(f"the controller did not start: {str(error).strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
