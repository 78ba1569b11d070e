"""Processes as detached, named Ray actors, so that they outlive a controller and the next one finds them.

A worker's actor is named `worker:NAME:INCARNATION`, in its cluster's Ray namespace; nothing here restarts by itself,
the controller decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError

from cluster.launcher import ProcessLost, ProxyReport, RunningProxy, RunningWorker, WorkerReport
from cluster.nodes import living_nodes, only_on, own_node
from cluster.placement_spec import GPU
from cluster.placements import Placements
from cluster.proxy_runner import ProxyRunner
from cluster.spec import ProcessSpec, ProxySpec, RestartSpec
from cluster.worker_actor import WorkerActor, WorkerIdentity
from kv_transfer.peer_address import PeerAddress

PROXY_ACTOR = "proxy"
ADOPT_TIMEOUT_S = 5.0
LAUNCH_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 5.0
RECONNECT_S = 1.0
logger = logging.getLogger(__name__)
T = TypeVar("T")


class RayWorker:
    """A `RunningWorker` behind an actor's handle."""

    def __init__(
        self, handle: Any, identity: WorkerIdentity, placements: Placements, *, takes_over: bool = False
    ) -> None:
        """`takes_over`: the actor was another worker's, which was released."""
        self._handle = handle
        self._takes_over = takes_over
        self._identity = identity
        self._placements = placements
        placements.add(identity.spec, identity.node)
        self.addresses = identity.addresses
        self.is_draining = identity.is_draining

    @property
    def spec(self) -> ProcessSpec:
        return self._identity.spec

    @property
    def num_restarts(self) -> int:
        return self._identity.num_restarts

    async def start(self) -> None:
        if self._takes_over:
            await answer(self._handle.become.remote(self.spec, self.num_restarts))
        self.addresses = await answer(self._handle.start.remote())

    async def describe(self) -> WorkerReport:
        return await answer(self._handle.describe.remote())

    async def watch(self) -> str:
        return await watch(self._handle)

    async def drain(self, timeout_s: float) -> int:
        self.is_draining = True
        return await answer(self._handle.drain.remote(timeout_s))

    async def meet(self, peers: Sequence[PeerAddress]) -> None:
        await answer(self._handle.meet.remote(peers))

    async def release(self) -> None:
        await answer(self._handle.release.remote())

    def become(self, spec: ProcessSpec, num_restarts: int) -> RayWorker:
        """The next worker of this process, which the caller has released."""
        self._placements.forget(self.spec.incarnation)
        identity = replace(self._identity, spec=spec, num_restarts=num_restarts, addresses=None, is_draining=False)
        return RayWorker(self._handle, identity, self._placements, takes_over=True)

    async def stop(self) -> None:
        await end(self._handle, STOP_TIMEOUT_S)
        self._placements.forget(self.spec.incarnation)


class RayProxy:
    """A `RunningProxy` behind an actor's handle."""

    def __init__(self, handle: Any, stop_timeout_s: float) -> None:
        self._handle = handle
        self._stop_timeout_s = stop_timeout_s

    async def describe(self) -> ProxyReport:
        return await answer(self._handle.describe.remote())

    async def watch(self) -> str:
        return await watch(self._handle)

    async def stop(self) -> None:
        await end(self._handle, self._stop_timeout_s + STOP_TIMEOUT_S)


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


async def answer(reference: Awaitable[T]) -> T:
    """What an actor's method returned. Raises ProcessLost for its death as for its error."""
    try:
        return await reference
    except RayTaskError as error:
        raise ProcessLost(f"{type(error.cause).__name__}: {error.cause}") from error
    except RayActorError as error:
        raise ProcessLost(_death(error)) from error
    except ActorUnschedulableError as error:
        raise ProcessLost("the machine that it was to start on has left") from error


async def watch(handle: Any) -> str:
    """What the actor's `watch` returned. A connection that breaks is no death: it goes on. Raises ProcessLost."""
    while True:
        try:
            return await answer(handle.watch.remote())
        except ProcessLost as error:
            if not isinstance(error.__cause__, ActorUnavailableError):
                raise
            await asyncio.sleep(RECONNECT_S)


async def end(handle: Any, grace_s: float) -> None:
    """Asks the actor to stop, then kills it, and returns when it is gone or could not be reached."""
    try:
        async with asyncio.timeout(grace_s):
            await answer(handle.stop.remote())
    except ProcessLost as error:
        logger.debug("an actor that is to stop: %s", error)
    except TimeoutError:
        logger.warning("an actor did not stop within %g s: killed", grace_s)
    ray.kill(handle, no_restart=True)
    try:
        async with asyncio.timeout(KILL_TIMEOUT_S):
            await watch(handle)
    except ProcessLost:
        return
    except TimeoutError:
        logger.warning("an actor is still there %g s after it was killed", KILL_TIMEOUT_S)


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


def _death(error: RayActorError) -> str:
    """One line out of Ray's many."""
    if "Worker unexpectedly exits with a connection error" in str(error):
        return "its process died: it crashed, or was killed"
    _, found, detail = str(error).partition("Worker exit detail: ")
    if found:
        return f"its process died: {detail.split('. ')[0]}"
    return str(error).strip().splitlines()[-1].strip()
