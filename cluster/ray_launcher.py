"""Processes as detached, named Ray actors, so that they outlive a controller and the next one finds them.

A worker's actor is named `worker:NAME:INCARNATION`, in its cluster's Ray namespace; nothing here restarts by itself,
the controller decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import ray

from cluster.launcher import ProcessLost, RunningProxy, RunningWorker
from cluster.nodes import living_nodes, only_on, own_node
from cluster.placement_spec import GPU
from cluster.placements import Placements
from cluster.proxy_runner import ProxyRunner
from cluster.ray_processes import RayProxy, RayWorker, answer, end
from cluster.spec import ProcessSpec, ProxySpec, RestartSpec
from cluster.worker_actor import WorkerActor, WorkerIdentity

PROXY_ACTOR = "proxy"
ADOPT_TIMEOUT_S = 5.0
LAUNCH_TIMEOUT_S = 60.0
logger = logging.getLogger(__name__)


class RayLauncher:
    """A `Launcher` over the Ray cluster that this process is connected to."""

    def __init__(self, log_dir: str, restart: RestartSpec, proxy_stop_timeout_s: float) -> None:
        self._log_dir = log_dir
        self._restart = restart
        self._proxy_stop_timeout_s = proxy_stop_timeout_s
        self._placements = Placements()

    def launch(self, spec: ProcessSpec, num_restarts: int) -> RunningWorker:
        """Raises NoPlaceError."""
        node = self._placements.choose(spec, living_nodes())
        actor = _detached(WorkerActor, f"worker:{spec.name}:{spec.incarnation}", spec.holds, only_on(node.id))
        handle = actor.remote(spec, num_restarts, self._log_dir)
        identity = WorkerIdentity(spec, num_restarts, node.id, addresses=None, is_draining=False)
        return RayWorker(handle, identity, self._placements)

    def take_over(self, released: RunningWorker, spec: ProcessSpec, num_restarts: int) -> RunningWorker:
        if not isinstance(released, RayWorker):
            raise TypeError(f"{released} is none of this launcher's workers")
        return released.become(spec, num_restarts)

    async def launch_proxy(self, spec: ProxySpec) -> RunningProxy:
        here = only_on(own_node())  # the controller's: what it listens on is an address of that one
        actor = _detached(ProxyRunner, PROXY_ACTOR, {}, here, get_if_exists=True)  # what was left is tried, or ended
        handle = actor.remote(spec, self._restart, self._log_dir)
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT_S):
                await answer(handle.start.remote())
        except TimeoutError as error:
            await end(handle, 0)
            raise ProcessLost(f"it did not start within {LAUNCH_TIMEOUT_S:g} s") from error
        except ProcessLost:
            await end(handle, 0)
            raise
        return RayProxy(handle, self._proxy_stop_timeout_s)

    async def adopt(self) -> tuple[list[RunningWorker], RunningProxy | None]:
        names = await asyncio.to_thread(ray.util.list_named_actors)
        found = await asyncio.gather(*(self._adopt_worker(name) for name in names if name.startswith("worker:")))
        proxy = await self._adopt_proxy() if PROXY_ACTOR in names else None
        return [worker for worker in found if worker is not None], proxy

    async def _adopt_worker(self, name: str) -> RunningWorker | None:
        handle = _find(name)
        if handle is None:
            return None
        try:
            async with asyncio.timeout(ADOPT_TIMEOUT_S):
                identity: WorkerIdentity = await answer(handle.identity.remote())
        except (ProcessLost, TimeoutError) as error:
            logger.warning("%s does not answer (%s): ended", name, error)
            await end(handle, 0)
            return None
        if identity.addresses is None:
            logger.warning("%s was still starting: ended", name)
            await end(handle, 0)
            return None
        return RayWorker(handle, identity, self._placements)

    async def _adopt_proxy(self) -> RunningProxy | None:
        handle = _find(PROXY_ACTOR)
        if handle is None:
            return None
        try:
            async with asyncio.timeout(ADOPT_TIMEOUT_S):
                await answer(handle.start.remote())
        except (ProcessLost, TimeoutError) as error:
            logger.warning("the proxy's runner does not answer (%s): ended", error)
            await end(handle, 0)
            return None
        return RayProxy(handle, self._proxy_stop_timeout_s)


def _detached(
    actor_class: type, name: str, holds: Mapping[str, float], strategy: Any, *, get_if_exists: bool = False
) -> Any:
    """`num_cpus` is 0: placement is ours to decide, and threads are the engine's setting."""
    return ray.remote(actor_class).options(
        name=name,
        lifetime="detached",
        num_cpus=0,
        num_gpus=holds.get(GPU, 0),
        resources={name: amount for name, amount in holds.items() if name != GPU},
        scheduling_strategy=strategy,
        max_restarts=0,
        get_if_exists=get_if_exists,
    )


def _find(name: str) -> Any:
    try:
        return ray.get_actor(name)
    except ValueError:  # it died since it was listed
        return None
