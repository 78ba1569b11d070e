"""The workers that should exist against those that do: pure bookkeeping, time is an argument.

`plan` says what to do next and counts it as begun: whatever it returns must be carried out, and each outcome told here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cluster.backoff import Backoff
from cluster.fleet_action import Action, Retire, Start
from cluster.fleet_worker import FleetWorker, WorkerState
from cluster.group_limits import NO_GROUP, GroupLimits
from cluster.roles import RoleName
from cluster.spec import RestartSpec

PLACE_RETRY_S = 1.0


class UnknownWorkerError(KeyError):
    """No worker has this name."""


class RoleChangeError(ValueError):
    """The worker's role cannot be changed so; the message says why."""


class NoRoomError(ValueError):
    """The groups of the pool have room for fewer workers; the message says what to do."""


@dataclass(slots=True)
class Fleet:
    """Maintains `workers` so that each pool tends to its desired size; a name has one worker, be it draining."""

    desired: dict[RoleName, int]
    restart: RestartSpec
    new_incarnation: Callable[[], str]
    workers: dict[str, FleetWorker] = field(default_factory=dict)
    limits: Mapping[RoleName, GroupLimits] = field(default_factory=dict)  # of pools that have groups

    def scale(self, role: RoleName, num_workers: int) -> int:
        """Sets the pool's desired size; the one before. Workers that were given up get a fresh chance.

        Raises NoRoomError.
        """
        if not self._limits(role).has_room_for(num_workers):
            raise NoRoomError(self._no_room(role, num_workers))
        previous = self.desired[role]
        self.desired[role] = num_workers
        for worker in list(self._pool(role)):
            if worker.state is WorkerState.FAILED:
                del self.workers[worker.name]
        return previous

    def drain(self, name: str) -> Retire:
        """Takes one worker out. Its pool's desired size stays, so another is started in its place."""
        worker = self.workers.get(name)
        if worker is None or worker.state in (WorkerState.WAITING, WorkerState.FAILED):
            raise UnknownWorkerError(name)
        return self._retire(worker)

    def set_role(self, name: str, role: RoleName, expected_epoch: int) -> Retire:
        """Takes one worker out, to be started again in this role; the desired sizes of both pools follow.

        It goes to the group that is called as its own, if there is one with room, so that it may keep its place.
        Raises UnknownWorkerError, and RoleChangeError when it is not what the caller takes it for, or has no room.
        """
        worker = self.workers.get(name)
        if worker is None or worker.state in (WorkerState.WAITING, WorkerState.FAILED):
            raise UnknownWorkerError(name)
        if worker.role_epoch != expected_epoch:
            raise RoleChangeError(f"the role epoch of {name} is {worker.role_epoch}, not {expected_epoch}")
        if worker.state is not WorkerState.READY:
            raise RoleChangeError(f"{name} is {worker.state.value}, not ready")
        if role == worker.role or "pool" in (role, worker.role):
            raise RoleChangeError(f"{name} is a {worker.role} worker and cannot become a {role} worker")
        if not self._limits(role).has_room_for(self.desired[role] + 1):
            raise RoleChangeError(self._no_room(role, self.desired[role] + 1))
        group = self._group_for_next(role, worker.group)
        if group is None:
            raise RoleChangeError(f"the groups of {role} are full until a worker has left: try again then")
        self.desired[worker.role] -= 1
        self.desired[role] += 1
        worker.next_role, worker.next_group, worker.comes_back = role, group, True
        return self._retire(worker)

    def adopt(
        self,
        name: str,
        role: RoleName,
        incarnation: str,
        num_restarts: int,
        draining: bool,
        now: float,
        role_epoch: int = 1,
        group: str = NO_GROUP,
    ) -> None:
        """Takes over a worker that lives already."""
        state = WorkerState.DRAINING if draining else WorkerState.READY
        worker = FleetWorker(name, role, incarnation, state, now, Backoff(self.restart), num_restarts)
        worker.role_epoch, worker.group = role_epoch, group
        self.workers[name] = worker

    def ready(self, name: str, incarnation: str, now: float) -> None:
        worker = self._living(name, incarnation)
        if worker is not None and worker.state is WorkerState.STARTING:
            worker.state, worker.started_at, worker.failed_starts = WorkerState.READY, now, 0

    def broken(self, name: str, incarnation: str) -> Retire | None:
        """This incarnation lives and cannot go on: it leaves, and a new one takes its place once it is gone."""
        worker = self._living(name, incarnation)
        if worker is None:
            return None
        worker.comes_back = worker.comes_back or worker.state is not WorkerState.DRAINING
        return self._retire(worker)

    def ended(self, name: str, incarnation: str, error: str, now: float) -> None:
        """This incarnation is gone, for whatever reason; `error` says why, for people."""
        worker = self._living(name, incarnation)
        if worker is None:
            return
        if worker.state is WorkerState.DRAINING and not worker.comes_back:
            del self.workers[name]
            return
        worker.comes_back = False
        if worker.next_role is not None:
            worker.group, worker.role, worker.next_role = worker.next_group, worker.next_role, None
            worker.role_epoch += 1
            worker.state, worker.retry_at = WorkerState.WAITING, now
            return
        worker.last_error = error
        if worker.state is WorkerState.STARTING:
            worker.failed_starts += 1
        lived_s = 0.0 if worker.state is WorkerState.STARTING else now - worker.started_at
        worker.backoff = worker.backoff.after_life(lived_s)
        if worker.failed_starts >= self.restart.max_failed_starts:
            worker.state = WorkerState.FAILED
        else:
            worker.state = WorkerState.WAITING
            worker.retry_at = now + worker.backoff.delay_s
            worker.num_restarts += 1

    def unplaced(self, name: str, incarnation: str, error: str, now: float) -> bool:
        """No machine had room for this start, which counts for nothing and is tried again; whether that is news."""
        worker = self._living(name, incarnation)
        if worker is None:
            return False
        is_news, worker.last_error = worker.last_error != error, error
        worker.state, worker.retry_at = WorkerState.WAITING, now + PLACE_RETRY_S
        return is_news

    def is_leaving(self, name: str, incarnation: str) -> bool:
        """Whether this incarnation was told to go, so that its end is no surprise."""
        worker = self._living(name, incarnation)
        return worker is None or worker.state is WorkerState.DRAINING

    def plan(self, now: float) -> list[Action]:
        """What to start and what to retire now."""
        actions: list[Action] = []
        for role in self.desired:
            actions += self._shrink(role)
            actions += self._restart_dead(role, now)
            actions += self._grow(role, now)
        return actions

    def next_retry_at(self) -> float | None:
        """When `plan` has something to do although nothing happened."""
        waiting = [w.retry_at for w in self.workers.values() if w.state is WorkerState.WAITING]
        return min(waiting, default=None)

    def _shrink(self, role: RoleName) -> list[Action]:
        """Those that serve nothing leave first, then those of the last group, of them the youngest names."""
        pool = self._counted(role)
        limits = self._limits(role)

        def stays(worker: FleetWorker) -> tuple[bool, bool, int, int]:
            state = worker.state
            order = -limits.rank(worker.counts_in), -worker.index
            return state is WorkerState.READY, state is WorkerState.STARTING, *order

        pool.sort(key=stays)
        actions: list[Action] = []
        for worker in pool[: max(0, len(pool) - self.desired[role])]:
            if worker.state in (WorkerState.WAITING, WorkerState.FAILED):
                del self.workers[worker.name]
            elif worker.comes_back:
                worker.comes_back = False
            else:
                actions.append(self._retire(worker))
        return actions

    def _restart_dead(self, role: RoleName, now: float) -> list[Action]:
        actions: list[Action] = []
        for worker in self._pool(role):
            if worker.state is WorkerState.WAITING and worker.retry_at <= now:
                worker.state, worker.started_at = WorkerState.STARTING, now
                worker.incarnation = self.new_incarnation()
                again = worker.num_restarts, worker.role_epoch, worker.group
                actions.append(Start(worker.name, role, worker.incarnation, *again))
        return actions

    def _grow(self, role: RoleName, now: float) -> list[Action]:
        actions: list[Action] = []
        for _ in range(self.desired[role] - len(self._counted(role))):
            group = self._group_for_next(role)
            if group is None:  # more are wished for than the groups allow, by a controller with other limits
                break
            index = next(i for i in range(len(self.workers) + 1) if f"{role}-{i}" not in self.workers)
            name, incarnation = f"{role}-{index}", self.new_incarnation()
            worker = FleetWorker(name, role, incarnation, WorkerState.STARTING, now, Backoff(self.restart), group=group)
            self.workers[name] = worker
            actions.append(Start(name, role, incarnation, 0, group=group))
        return actions

    def _limits(self, role: RoleName) -> GroupLimits:
        return self.limits.get(role, GroupLimits())

    def _no_room(self, role: RoleName, num_workers: int) -> str:
        return (
            f"{num_workers} workers are wanted, and the groups of {role} have room for {self._limits(role).capacity}: "
            f"ask for fewer, or start the cluster with a higher most in cluster.pools.{role}.groups"
        )

    def _group_for_next(self, role: RoleName, preferred: str = NO_GROUP) -> str | None:
        taken = Counter(worker.counts_in for worker in self._counted(role))
        return self._limits(role).choose(taken, preferred)

    def _retire(self, worker: FleetWorker) -> Retire:
        was_ready = worker.state is not WorkerState.STARTING
        worker.state = WorkerState.DRAINING
        return Retire(worker.name, worker.incarnation, was_ready)

    def _living(self, name: str, incarnation: str) -> FleetWorker | None:
        worker = self.workers.get(name)
        return worker if worker is not None and worker.incarnation == incarnation else None

    def _pool(self, role: RoleName) -> list[FleetWorker]:
        return [worker for worker in self.workers.values() if worker.role == role]

    def _counted(self, role: RoleName) -> list[FleetWorker]:
        return [
            worker
            for worker in self.workers.values()
            if worker.counts_for == role and (worker.state is not WorkerState.DRAINING or worker.comes_back)
        ]
