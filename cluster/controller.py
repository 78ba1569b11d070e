"""The control loop: makes the fleet what it should be, hears of every death, and publishes who is there.

Plain asyncio over a `Launcher`; `ControllerActor` runs it under Ray. A fault of its own ends it: Ray starts it again,
and it adopts what lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from time import monotonic
from uuid import uuid4

from cluster.desired_file import DesiredFile
from cluster.fleet import Fleet
from cluster.fleet_action import Retire, Start
from cluster.fleet_worker import FleetWorker
from cluster.introductions import introduce
from cluster.kept_processes import KeptProcesses
from cluster.launcher import Launcher, ProcessLost, RunningWorker
from cluster.membership import Member, Membership
from cluster.placements import NoPlaceError
from cluster.proxy_keeper import ProxyKeeper
from cluster.retirements import Retirements
from cluster.roles import RoleName, can_generate
from cluster.scale_events import BY_HAND, ScaleEvents
from cluster.spec import ClusterSpec, ProxySpec
from cluster.worker_status import WorkerStatus, report_of

logger = logging.getLogger(__name__)


class NothingGeneratesError(ValueError):
    """A cluster of the wanted sizes could answer nobody; the message says what to do."""


class Controller:
    """Maintains one task per living worker, which starts it, watches it and tells the fleet how it ended."""

    def __init__(
        self,
        spec: ClusterSpec,
        model_dir: str,
        launcher: Launcher,
        desired_file: DesiredFile,
        proxy: ProxySpec | None,
    ) -> None:
        self.spec = spec
        self.proxy = ProxyKeeper(proxy, spec.restart, launcher)
        self.incarnation = new_incarnation()
        self.membership = Membership()
        self.scale_events = ScaleEvents()
        self.started_at = monotonic()
        self.fleet = Fleet(desired_file.read() or spec.desired, spec.restart, new_incarnation, limits=spec.group_limits)
        self._model_dir = model_dir
        self._launcher = launcher
        self._desired_file = desired_file
        self._kept = KeptProcesses(launcher)
        self._running: dict[str, RunningWorker] = {}  # by incarnation
        self._retirements = Retirements(self._running, self._kept, self._goes_on)
        self._tasks: asyncio.TaskGroup
        self._changed = asyncio.Event()
        self._stopping = False

    async def adopt(self) -> None:
        """Takes over what an earlier controller left. Nothing is published, and nobody served, before this."""
        workers, proxy = await self._launcher.adopt()
        self.proxy.adopt(proxy)
        for worker in workers:
            spec = worker.spec
            other = self.fleet.workers.get(spec.name)
            if other is not None:
                logger.warning("%s lives twice: %s is ended", spec.name, spec.incarnation)
                await worker.stop()
                continue
            logger.info("adopted %s (%s)", spec.name, spec.incarnation)
            self._running[spec.incarnation] = worker
            self.fleet.adopt(
                spec.name,
                spec.role,
                spec.incarnation,
                worker.num_restarts,
                worker.is_draining,
                monotonic(),
                spec.role_epoch,
                spec.group,
            )

    async def run(self) -> None:
        """Until `shut_down`. Call `adopt` first."""
        async with asyncio.TaskGroup() as self._tasks:
            for worker in list(self._running.values()):
                self._tasks.create_task(self._watch(worker))
                if worker.is_draining:
                    self._retire(Retire(worker.spec.name, worker.spec.incarnation, was_ready=True))
            self._tasks.create_task(self.proxy.run())
            await self._reconcile()

    def scale(self, role: RoleName, num_workers: int, reason: str = BY_HAND) -> int:
        """Takes a new target; the one before. Raises NothingGeneratesError, and NoRoomError of the pool's groups."""
        self._check_generates({role: num_workers})
        previous = self.fleet.scale(role, num_workers)
        self.scale_events.resized(role, previous, num_workers, reason)
        self._desired_file.write(self.fleet.desired)
        logger.info("%s: %d workers wanted, %d before", role, num_workers, previous)
        self._changed.set()
        return previous

    async def drain(self, name: str, timeout_s: float) -> int:
        """Takes one worker out, another comes in its place; how many requests it aborted. Raises UnknownWorkerError."""
        task = self._retire(self.fleet.drain(name), timeout_s)
        self._changed.set()
        return await asyncio.shield(task)

    def set_role(self, name: str, role: RoleName, expected_epoch: int, timeout_s: float, reason: str = BY_HAND) -> None:
        """Drains a worker, which goes on in this role with the model it has.

        Raises as `Fleet.set_role`, or NothingGeneratesError.
        """
        worker, desired = self.fleet.workers.get(name), self.fleet.desired
        if worker is not None and worker.role != role:
            self._check_generates({worker.role: desired[worker.role] - 1, role: desired[role] + 1})
        before = worker.role if worker is not None else role
        self._retire(self.fleet.set_role(name, role, expected_epoch), timeout_s)
        self.scale_events.role_changed(before, role, reason)
        self._desired_file.write(self.fleet.desired)
        logger.info("%s drains to become a %s worker", name, role)
        self._changed.set()

    async def shut_down(self) -> None:
        """Stops the proxy, then every worker, at once. `run` returns after it."""
        self._stopping = True
        self._changed.set()
        await self.proxy.stop()
        await asyncio.gather(*(worker.stop() for worker in (*self._running.values(), *self._kept.all)))

    async def list_workers(self) -> list[WorkerStatus]:
        workers = sorted(self.fleet.workers.values(), key=lambda w: (w.role, w.name))
        reports = await asyncio.gather(*(report_of(self._running.get(worker.incarnation)) for worker in workers))
        return [
            WorkerStatus(self._member(worker), worker.num_restarts, worker.last_error, report)
            for worker, report in zip(workers, reports, strict=True)
        ]

    def _check_generates(self, changed: Mapping[RoleName, int]) -> None:
        if not can_generate({**self.fleet.desired, **changed}):
            raise NothingGeneratesError("no worker that generates would be left: first scale decode or mixed up")

    async def _reconcile(self) -> None:
        while not self._stopping:
            self._changed.clear()
            actions = self.fleet.plan(monotonic())
            for worker in self._kept.drop_others(self.fleet.workers):
                self._tasks.create_task(worker.stop())
            for action in actions:
                match action:
                    case Start():
                        self._launch(action)
                    case Retire():
                        self._retire(action)
            self.membership.publish(tuple(self._member(worker) for worker in self.fleet.workers.values()))
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        retry_at = self.fleet.next_retry_at()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if retry_at is None else retry_at - monotonic()):
                await self._changed.wait()

    def _launch(self, start: Start) -> None:
        spec = self.spec.process(
            start.name, start.role, start.incarnation, self._model_dir, start.role_epoch, start.group
        )
        logger.info("%s starts as %s, restart %d", start.name, start.incarnation, start.num_restarts)
        try:
            worker = self._kept.launch(spec, start.num_restarts)
        except NoPlaceError as error:
            if self.fleet.unplaced(start.name, start.incarnation, str(error), monotonic()):
                logger.warning("%s waits for a machine: %s", start.name, error)
            return
        self._running[start.incarnation] = worker
        self._tasks.create_task(self._run_worker(worker), name=start.name)

    async def _run_worker(self, worker: RunningWorker) -> None:
        spec = worker.spec
        try:
            async with asyncio.timeout(self.spec.start_timeout_s):
                await worker.start()
                await introduce(worker, [other for other in self._running.values() if other.addresses is not None])
        except TimeoutError:
            await worker.stop()
            self._ended(worker, f"it did not start within {self.spec.start_timeout_s:g} s")
        except ProcessLost as error:
            await worker.stop()
            self._ended(worker, str(error))
        else:
            self.fleet.ready(spec.name, spec.incarnation, monotonic())
            logger.info("%s (%s) is ready", spec.name, spec.incarnation)
            self._changed.set()
            await self._watch(worker)

    async def _watch(self, worker: RunningWorker) -> None:
        spec = worker.spec
        try:
            reason = await worker.watch()
        except ProcessLost as error:
            if not self._kept.holds(worker):
                await worker.stop()  # quick for a dead one; it may be ill instead
            self._ended(worker, str(error))
            return
        logger.error("%s (%s) cannot go on: %s", spec.name, spec.incarnation, reason)
        retire = self.fleet.broken(spec.name, spec.incarnation)
        self._changed.set()
        if retire is not None:
            await self._retire(retire, timeout_s=0.0)  # nothing can finish there
        self._ended(worker, reason)

    def _ended(self, worker: RunningWorker, reason: str) -> None:
        spec = worker.spec
        expected = self.fleet.is_leaving(spec.name, spec.incarnation)
        logger.log(logging.INFO if expected else logging.WARNING, "%s ended: %s", spec.name, reason)
        self._running.pop(spec.incarnation, None)
        self.fleet.ended(spec.name, spec.incarnation, reason, monotonic())
        self._changed.set()

    def _retire(self, retire: Retire, timeout_s: float | None = None) -> asyncio.Task[int]:
        timeout_s = self.spec.drain_timeout_s if timeout_s is None else timeout_s
        return self._retirements.begin(self._tasks, retire, timeout_s)

    def _goes_on(self, worker: RunningWorker) -> bool:
        """Whether its process will be that of the same name in its next role."""
        known = self.fleet.workers.get(worker.spec.name)
        if known is None or known.incarnation != worker.spec.incarnation or known.next_role is None:
            return False
        next_spec = self.spec.process(known.name, known.next_role, "", self._model_dir, group=known.next_group)
        return known.comes_back and not self._stopping and worker.spec.can_become(next_spec)

    def _member(self, worker: FleetWorker) -> Member:
        running = self._running.get(worker.incarnation)
        addresses = running.addresses if running is not None else None
        return Member(
            worker.name, worker.incarnation, worker.role, worker.state, addresses, worker.role_epoch, worker.group
        )


def new_incarnation() -> str:
    return uuid4().hex[:12]
