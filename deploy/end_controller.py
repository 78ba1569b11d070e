"""`python -m deploy.end_controller RAY_ADDRESS NAMESPACE` ends what a cluster left on a Ray that goes on."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import ray


def main() -> None:
    address, namespace = sys.argv[1:]
    ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)
    names = ray.util.list_named_actors()
    for name in sorted(names, key=lambda name: name.startswith("worker:")):  # first who would start them again
        with suppress(ValueError):  # it has ended since
            ray.kill(ray.get_actor(name), no_restart=True)


if __name__ == "__main__":
    main()
