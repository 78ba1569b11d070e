"""Sends waiting requests to workers: those that were started before first, then the queue, only a little ahead.

A worker's own queue stays short (`dispatch_ahead`), so that the order is decided here and not there. Places there that
batch requests took are no obstacle to an interactive one, which goes before them.
"""

from __future__ import annotations

import asyncio

from proxy.admission.waiting_room import WaitingRoom
from proxy.config import ProxyConfig
from proxy.request.job import Job
from proxy.request.priority import BATCH
from proxy.routing.placement import NotPlaced, Waiter
from proxy.routing.queue import Asked, RequestQueue
from proxy.routing.router import Router
from proxy.workers.worker_pool import WorkerPool

MAX_DEATHS = 3  # of workers that a request was at: one that kills workers must not walk on


class Dispatcher:
    """Maintains who waits. `pump` looks, in the next turn of the loop, whether somebody can be placed."""

    def __init__(self, pool: WorkerPool, router: Router, config: ProxyConfig) -> None:
        room = WaitingRoom(config.max_queued_requests, config.max_queued_tokens)
        self.queue: RequestQueue[Waiter] = RequestQueue(room, config.priority_ageing_s)
        self._pool = pool
        self._config = config
        self._router = router
        self._started: dict[Waiter, None] = {}  # by earlier attempts
        self._is_scheduled = False
        self._recovery_timer: asyncio.TimerHandle | None = None  # while there is no decode worker
        self._rests: dict[Waiter, asyncio.TimerHandle] = {}  # of those started that are not placed yet a while
        self._verdict_timers: dict[Waiter, asyncio.TimerHandle] = {}  # while it is open whether lost workers died

    @property
    def has_decode(self) -> bool:
        return bool(self._pool.decode_links())

    def num_waiting(self, priority: str) -> int:
        """Of this label."""
        started = sum(waiter.job.priority.label == priority for waiter in self._started)
        return self.queue.num_waiting(batch=priority == BATCH) + started

    def submit(self, waiter: Waiter) -> None:
        """Queues a new request, whose place in the queue was reserved."""
        job = waiter.job
        asked = Asked(
            tenant=job.tenant,
            priority=job.priority,
            arrived_at=job.admitted_at,
            num_tokens=job.num_queued_tokens,
            is_long=self._router.room.is_long(job),
            max_running=job.max_running,
        )
        self.queue.push(waiter, asked)
        self.pump()

    def resubmit(self, waiter: Waiter, rest_s: float = 0.0) -> None:
        """After a rest before everybody in the queue, and whatever waits at the workers."""
        self._started[waiter] = None
        if rest_s:
            self._rests[waiter] = asyncio.get_running_loop().call_later(rest_s, self._rested, waiter)
        self.pump()

    def withdraw(self, waiter: Waiter) -> None:
        if not self.queue.remove(waiter):
            self._leave(waiter)

    def ended(self, job: Job, num_generated: int) -> None:
        """A request runs no more that was placed at least once."""
        self.queue.ended(job.tenant, num_generated, batch=job.priority.is_batch)
        self.pump()

    def pump(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        for waiter in sorted((w for w in self._started if w not in self._rests), key=self._order):
            self._pump_started(waiter)
        while self._place_next():
            pass
        self.queue.looked(asyncio.get_running_loop().time())
        self._update_recovery_timer()

    def _order(self, waiter: Waiter) -> float:
        return waiter.job.priority.order(waiter.job.admitted_at, self._config.priority_ageing_s)

    def _place_next(self) -> bool:
        """Places the first of the queue, or if it cannot go the first of another lane."""
        for waiter in self.queue.heads():
            placement = self._router.place(waiter, gated=True)
            if placement is not None:
                self.queue.take(waiter)
                waiter.place(placement)
                return True
        return False

    def _rested(self, waiter: Waiter) -> None:
        del self._rests[waiter]
        self.pump()

    def _pump_started(self, waiter: Waiter) -> None:
        lost = waiter.constraints.lost
        num_dead = sum(not self._pool.is_member(incarnation) for incarnation in lost)
        num_open = sum(self._pool.is_out_of_reach(incarnation) for incarnation in lost)
        if num_dead >= MAX_DEATHS:
            self._end_by_deaths(waiter)
        elif num_dead + num_open >= MAX_DEATHS:  # the membership will tell, or the link comes back
            self._await_verdict(waiter)
        elif (placement := self._router.place(waiter, gated=False)) is not None:
            self._leave(waiter)
            waiter.place(placement)

    def _await_verdict(self, waiter: Waiter) -> None:
        if waiter not in self._verdict_timers:
            loop = asyncio.get_running_loop()
            limit_s = self._config.recovery_timeout_s
            self._verdict_timers[waiter] = loop.call_later(limit_s, self._end_by_deaths, waiter)

    def _end_by_deaths(self, waiter: Waiter) -> None:
        self._leave(waiter)
        waiter.give_up(NotPlaced.TOO_MANY_DEATHS)

    def _leave(self, waiter: Waiter) -> None:
        self._started.pop(waiter, None)
        for timers in (self._rests, self._verdict_timers):
            timer = timers.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    def _update_recovery_timer(self) -> None:
        is_lost = bool(self.queue or self._started) and not self.has_decode
        if self._recovery_timer is not None and not is_lost:
            self._recovery_timer.cancel()
            self._recovery_timer = None
        elif self._recovery_timer is None and is_lost:
            loop = asyncio.get_running_loop()
            self._recovery_timer = loop.call_later(self._config.recovery_timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._recovery_timer = None
        waiters = [*self._started]
        for waiter in waiters:
            self._leave(waiter)
        while heads := self.queue.heads():
            self.queue.remove(heads[0])
            waiters.append(heads[0])
        for waiter in waiters:
            waiter.give_up(NotPlaced.NO_WORKER)
