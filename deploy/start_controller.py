"""`python -m deploy.start_controller SETTINGS` starts the controller's actor and waits until it serves.

A process of its own, so that the command that brings a cluster up needs neither Ray's memory nor its environment.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import ray
from ray.exceptions import RayError

from cluster.controller_actor import ControllerSettings, start_controller
from cluster.ray_launcher import NAMESPACE
from cluster.spec import ClusterSpec, ProxySpec

READY_TIMEOUT_S = 60.0


def write_settings(file: Path, ray_address: str, settings: ControllerSettings) -> None:
    content = {
        "ray_address": ray_address,
        "spec": settings.spec.model_dump(mode="json"),
        "proxy": settings.proxy.model_dump(mode="json"),
        "model_dir": settings.model_dir,
        "log_dir": settings.log_dir,
        "state_dir": settings.state_dir,
    }
    file.write_text(json.dumps(content))


def main() -> None:
    content = json.loads(Path(sys.argv[1]).read_text())
    ray.init(content["ray_address"], namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    settings = ControllerSettings(
        spec=ClusterSpec.model_validate(content["spec"]),
        model_dir=content["model_dir"],
        proxy=ProxySpec.model_validate(content["proxy"]),
        log_dir=content["log_dir"],
        state_dir=content["state_dir"],
    )
    controller = start_controller(settings)
    try:
        print(ray.get(controller.wait_ready.remote(READY_TIMEOUT_S)))
    except RayError as error:
        sys.exit(f"the controller did not start: {str(error).strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
