"""A running process behind the handle of its Ray actor: what it answers, how its death is told, how it is ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError

from cluster.launcher import ProcessLost, ProxyReport, WorkerReport
from cluster.placements import Placements
from cluster.spec import ProcessSpec
from cluster.worker_actor import WorkerIdentity
from kv_transfer.peer_address import PeerAddress

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


def _death(error: RayActorError) -> str:
    """One line out of Ray's many."""
    if "Worker unexpectedly exits with a connection error" in str(error):
        return "its process died: it crashed, or was killed"
    _, found, detail = str(error).partition("Worker exit detail: ")
    if found:
        return f"its process died: {detail.split('. ')[0]}"
    return str(error).strip().splitlines()[-1].strip()
