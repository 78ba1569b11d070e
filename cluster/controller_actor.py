"""The Ray actor of the controller: detached, restarted by Ray whenever it dies.

The control loop runs in a thread with its own event loop, since a restarted actor gets no call that could start it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import Future
from pathlib import Path
from time import sleep
from typing import Any

import ray

from cluster.actor_process import log_file, log_to
from cluster.autoscale.autoscaler import Autoscaler
from cluster.control_metrics import ControlMetricsServer
from cluster.control_service import ControlServer
from cluster.controller import Controller
from cluster.desired_file import DesiredFile
from cluster.nodes import only_on
from cluster.ray_launcher import RayLauncher
from cluster.spec import ControllerSettings
from security.address import join_host_port
from security.cluster_tls import ClusterTls

CONTROLLER_ACTOR = "controller"
EXIT_DELAY_S = 1.0  # who waits in `wait_ready` hears the error first, and a restart never loops hot
logger = logging.getLogger(__name__)


class ControllerActor:
    """Maintains one `Controller` and its server. When they fail the process ends, and Ray starts another."""

    def __init__(self, settings: ControllerSettings) -> None:
        log_to(log_file(settings.log_dir, "controller"), settings.spec.logs)
        self._settings = settings
        self._ready: Future[str] = Future()
        threading.Thread(target=self._run, name="controller", daemon=True).start()

    def wait_ready(self, timeout_s: float) -> str:
        """The address it serves on. Raises what kept it from starting."""
        return self._ready.result(timeout_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            logger.exception("the controller failed")
            if not self._ready.done():
                self._ready.set_exception(error)
            sleep(EXIT_DELAY_S)
            os._exit(1)

    async def _serve(self) -> None:
        settings = self._settings
        proxy_stop_timeout_s = 0.0 if settings.proxy is None else settings.proxy.stop_timeout_s
        launcher = RayLauncher(settings.log_dir, settings.spec.restart, proxy_stop_timeout_s)
        desired_file = DesiredFile(Path(settings.state_dir) / "desired.json")
        controller = Controller(settings.spec, settings.model_dir, launcher, desired_file, settings.proxy)
        await controller.adopt()
        autoscaler = Autoscaler(controller)
        metrics = ControlMetricsServer.start(controller)
        server = ControlServer(controller, autoscaler, metrics.address)
        address = join_host_port(settings.spec.host, settings.spec.controller_port)
        tls = ClusterTls.read(settings.spec.tls)
        try:
            await server.start(address, tls.server)
        except OSError as error:
            raise OSError(f"{error} (cluster.controller_port): end who has it, or set another port") from error
        logger.info("controller %s serves on %s, process %d", controller.incarnation, address, os.getpid())
        self._ready.set_result(address)
        scaling = asyncio.create_task(autoscaler.run(), name="autoscaler")
        try:
            await controller.run()
        finally:
            scaling.cancel()
            await server.stop()
            await asyncio.to_thread(metrics.stop)


def start_controller(settings: ControllerSettings, node: str) -> Any:
    """The actor's handle; it runs on the machine with that id. Needs a connection to Ray in the cluster's namespace."""
    options = {"name": CONTROLLER_ACTOR, "lifetime": "detached", "num_cpus": 0}
    actor = ray.remote(ControllerActor).options(**options, scheduling_strategy=only_on(node), max_restarts=-1)
    return actor.remote(settings)
