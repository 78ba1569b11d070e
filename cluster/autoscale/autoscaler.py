"""Looks at the cluster every few seconds, and changes its pools where the judge says so.

It acts as an operator would, through the controller; an operator's own changes stand, and are followed by a rest. While
no proxy reports, or no worker answers, it changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic

from cluster.autoscale.judge import AtLimit, Judge, PoolState, Resize, RoleChange, Verdict
from cluster.autoscale.need import DecodeLoad, Need, decode_need, missed_target, prefill_need
from cluster.autoscale.spec import SCALED_ROLES, AutoscaleSpec, ScaledRole
from cluster.autoscale.speed import PoolSpeed
from cluster.autoscale.traffic import Traffic, TrafficWindow
from cluster.controller import Controller, NothingGeneratesError
from cluster.fleet import RoleChangeError, UnknownWorkerError
from cluster.fleet_worker import WorkerState
from cluster.worker_status import WorkerStatus
from rpc import control_pb2, worker_pb2

UNSETTLED = (WorkerState.STARTING, WorkerState.DRAINING, WorkerState.WAITING)
logger = logging.getLogger(__name__)


class Autoscaler:
    """Maintains what was seen of traffic and speed, and the sizes that it knows of. `run` does the work."""

    def __init__(self, controller: Controller) -> None:
        self._spec: AutoscaleSpec = controller.spec.autoscale
        self._controller = controller
        self._traffic = TrafficWindow(self._spec.window_s)
        self._speeds = {role: PoolSpeed() for role in SCALED_ROLES}
        self._judge = Judge(self._spec, monotonic())
        self._sizes = self._wanted()
        self._said = ""  # what cannot be done, so that it is not said at every look

    @property
    def traffic_every_s(self) -> float:
        """How often proxies should report; 0: not at all."""
        return self._spec.every_s if self._spec.enabled else 0.0

    def reported(self, report: control_pb2.TrafficReport) -> None:
        """A proxy tells what came to it."""
        self._traffic.add(report, monotonic())

    async def run(self) -> None:
        """Until cancelled. A fault of one look is logged: the cluster serves without scaling, not the other way."""
        if not self._spec.enabled:
            return
        logger.info("autoscale: on, %s", self._spec.model_dump_json(exclude_defaults=True))
        while True:
            await asyncio.sleep(self._spec.every_s)
            try:
                await self.look()
            except Exception:
                logger.exception("autoscale: this look failed")

    async def look(self) -> Verdict | None:
        """Looks once and acts; what it did, or could not do."""
        statuses = await self._controller.list_workers()
        now = monotonic()
        for role in SCALED_ROLES:
            self._speeds[role].looked(_loads(role, statuses))
            self._notice_change(role, now)
        traffic = self._traffic.look(now)
        if traffic is None:
            self._say("no reports", "no proxy has reported for long enough: nothing is changed")
            return None
        verdict = self._judge.decide(self._pools(traffic, statuses), now)
        match verdict:
            case Resize():
                self._resize(verdict, now)
            case RoleChange():
                self._change_roles(verdict, statuses, now)
            case AtLimit():
                self._say(f"{verdict.role} lacks", f"{verdict.role} lacks workers: {verdict.text}")
            case None:
                self._said = ""
        return verdict

    def _pools(self, traffic: Traffic, statuses: Sequence[WorkerStatus]) -> dict[ScaledRole, PoolState]:
        spec, sizes = self._spec, self._sizes
        needs: dict[ScaledRole, Need | None] = {
            "prefill": prefill_need(traffic, self._speeds["prefill"], spec),
            "decode": decode_need(traffic, self._speeds["decode"], self._decode_load(statuses), spec),
        }
        seen = dict(needs)
        for role, need in seen.items():
            logger.debug("autoscale: %s, %d workers: %s", role, sizes[role], need)
            if need is None or need.workers <= sizes[role]:
                needs[role] = missed_target(role, traffic, seen, sizes, spec) or need
        return {role: PoolState(sizes[role], self._is_settled(role), needs[role]) for role in SCALED_ROLES}

    def _decode_load(self, statuses: Sequence[WorkerStatus]) -> DecodeLoad:
        loads = _loads("decode", statuses).values()
        usage = [1 - load.num_free_blocks / load.num_blocks for load in loads if load.num_blocks]
        engine = self._controller.spec.pools.decode.engine
        return DecodeLoad(len(usage), sum(usage) / max(1, len(usage)), engine.scheduling.max_num_seqs)

    def _is_settled(self, role: ScaledRole) -> bool:
        workers = self._controller.fleet.workers.values()
        return not any(w.state in UNSETTLED for w in workers if role in (w.role, w.counts_for))

    def _notice_change(self, role: ScaledRole, now: float) -> None:
        wanted = self._wanted()[role]
        if wanted != self._sizes[role]:
            logger.info("autoscale: %s has %d workers by hand, %d before", role, wanted, self._sizes[role])
            self._sizes[role] = wanted
            self._judge.changed(role, now)

    def _resize(self, resize: Resize, now: float) -> None:
        try:
            self._controller.scale(resize.role, resize.after, resize.reason)
        except NothingGeneratesError as error:
            self._say(f"{resize.role} cannot", f"{resize.role} cannot be scaled: {error}")
            return
        logger.info(
            "autoscale: %s %d → %d, %s: %s", resize.role, resize.before, resize.after, resize.reason, resize.text
        )
        self._took(now, resize.role)

    def _change_roles(self, change: RoleChange, statuses: Sequence[WorkerStatus], now: float) -> None:
        """The least busy workers go."""
        ready = [s for s in statuses if s.member.role == change.giver and s.member.state is WorkerState.READY]
        ready.sort(key=lambda status: _num_requests(status))
        for status in ready[: change.count]:
            member = status.member
            try:
                timeout_s = self._controller.spec.drain_timeout_s
                self._controller.set_role(member.worker, change.role, member.role_epoch, timeout_s, "mix")
            except (RoleChangeError, UnknownWorkerError, NothingGeneratesError) as error:
                self._say(f"{member.worker} cannot", f"{member.worker} cannot become a {change.role} worker: {error}")
                continue
            logger.info("autoscale: %s %s → %s, mix: %s", member.worker, change.giver, change.role, change.text)
        self._took(now, change.role, change.giver)

    def _took(self, now: float, *roles: ScaledRole) -> None:
        self._sizes = self._wanted()
        for role in roles:
            self._judge.changed(role, now)

    def _wanted(self) -> dict[ScaledRole, int]:
        return {role: self._controller.fleet.desired[role] for role in SCALED_ROLES}

    def _say(self, what: str, text: str) -> None:
        """Once while it stays so, although the figures in the text change."""
        if what != self._said:
            logger.warning("autoscale: %s", text)
        self._said = what


def _loads(role: ScaledRole, statuses: Sequence[WorkerStatus]) -> dict[str, worker_pb2.Load]:
    """By incarnation, of those that answered."""
    return {
        status.member.incarnation: status.report.load
        for status in statuses
        if status.member.role == role and status.report is not None
    }


def _num_requests(status: WorkerStatus) -> int:
    return status.report.load.num_running + status.report.load.num_waiting if status.report is not None else 0
