"""Sends waiting requests to workers: those that were started before first, then the queue, only a little ahead.

A worker's own queue stays short (`dispatch_ahead`), so that the order is decided here and not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from proxy.config import ProxyConfig
from proxy.metrics import ProxyMetrics
from proxy.placement import Constraints, NotPlaced, Placement, Waiter
from proxy.queue import RequestQueue
from proxy.router import POLICIES, Cost, decode_cost, prefill_cost
from proxy.worker_link import WorkerLink
from proxy.worker_pool import WorkerPool

NO_PREFILL_WORKER = "no_prefill_worker"
MAX_UNTRANSFERRED = 8  # computed prompts that one decode worker has not taken over: more means that it is full
MAX_DEATHS = 2  # of workers that a request was at: one that kills workers must not walk on


class Dispatcher:
    """Maintains who waits. `pump` looks, in the next turn of the loop, whether somebody can be placed."""

    def __init__(self, pool: WorkerPool, config: ProxyConfig, metrics: ProxyMetrics) -> None:
        self.queue: RequestQueue[Waiter] = RequestQueue(config.max_queued_requests)
        self._pool = pool
        self._config = config
        self._metrics = metrics
        self._policy = POLICIES[config.routing]
        self._turn = 0
        self._started: dict[Waiter, None] = {}  # by earlier attempts; in the order of their failure
        self._is_scheduled = False
        self._recovery_timer: asyncio.TimerHandle | None = None  # while there is no decode worker
        self._verdict_timers: dict[Waiter, asyncio.TimerHandle] = {}  # while it is open whether lost workers died

    @property
    def has_decode(self) -> bool:
        return bool(self._pool.decode_links())

    @property
    def num_waiting(self) -> int:
        return len(self.queue) + len(self._started)

    def submit(self, waiter: Waiter) -> None:
        """Queues a new request, whose place in the queue was reserved."""
        self.queue.push(waiter)
        self.pump()

    def resubmit(self, waiter: Waiter) -> None:
        """Before everybody in the queue, and whatever waits at the workers."""
        self._started[waiter] = None
        self.pump()

    def withdraw(self, waiter: Waiter) -> None:
        if not self.queue.remove(waiter):
            self._leave(waiter)

    def pump(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        for waiter in list(self._started):
            self._pump_started(waiter)
        while (first := self.queue.peek()) is not None:
            placement = self._placement(first.constraints, gated=True)
            if placement is None:
                break
            self.queue.remove(first)
            first.place(placement)
        self._update_recovery_timer()

    def _pump_started(self, waiter: Waiter) -> None:
        lost = waiter.constraints.lost
        num_dead = sum(not self._pool.is_member(incarnation) for incarnation in lost)
        num_open = sum(self._pool.is_out_of_reach(incarnation) for incarnation in lost)
        if num_dead >= MAX_DEATHS:
            self._end_by_deaths(waiter)
        elif num_dead + num_open >= MAX_DEATHS:  # the membership will tell, or the link comes back
            self._await_verdict(waiter)
        elif (placement := self._placement(waiter.constraints, gated=False)) is not None:
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
        timer = self._verdict_timers.pop(waiter, None)
        if timer is not None:
            timer.cancel()

    def _placement(self, constraints: Constraints, *, gated: bool) -> Placement | None:
        """None: not now."""
        prefills = self._pool.prefill_links() if constraints.local_reason is None else []
        decodes = self._pool.decode_links()
        if constraints.decode in decodes:
            decodes = [constraints.decode]
        elif gated:
            decodes = [link for link in decodes if self._has_room(link, for_prompt=not prefills)]
        if not decodes:
            return None
        decode = self._choose(decodes, constraints, decode_cost if prefills else prefill_cost)
        pairs = [link for link in prefills if shared_transport(link, decode) is not None]
        if not pairs:
            return self._decided(Placement(decode, None, None, constraints.local_reason or NO_PREFILL_WORKER))
        if gated:
            pairs = [link for link in pairs if self._has_room(link, for_prompt=True)]
        if not pairs:
            return None
        prefill = self._choose(pairs, constraints, prefill_cost)
        return self._decided(Placement(decode, prefill, shared_transport(prefill, decode), None))

    def _has_room(self, link: WorkerLink, *, for_prompt: bool) -> bool:
        if for_prompt:
            return link.view().num_waiting < self._config.dispatch_ahead
        return link.tally.num_untransferred < MAX_UNTRANSFERRED

    def _choose(self, links: Sequence[WorkerLink], constraints: Constraints, cost: Cost) -> WorkerLink:
        links = [link for link in links if link.incarnation not in constraints.avoid] or links
        return links[self._policy([link.view() for link in links], self._turn, cost)]

    def _decided(self, placement: Placement) -> Placement:
        self._turn += 1
        self._metrics.routing_decisions.labels(self._config.routing).inc()
        return placement

    def _update_recovery_timer(self) -> None:
        if self._recovery_timer is not None and (self.has_decode or not self.num_waiting):
            self._recovery_timer.cancel()
            self._recovery_timer = None
        elif self._recovery_timer is None and self.num_waiting and not self.has_decode:
            loop = asyncio.get_running_loop()
            self._recovery_timer = loop.call_later(self._config.recovery_timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._recovery_timer = None
        waiters = [*self._started]
        for waiter in waiters:
            self._leave(waiter)
        while (first := self.queue.peek()) is not None:
            self.queue.remove(first)
            waiters.append(first)
        for waiter in waiters:
            waiter.give_up(NotPlaced.NO_WORKER)


def shared_transport(prefill: WorkerLink, decode: WorkerLink) -> str | None:
    """The first of the prefill worker's transports that the decode worker has too."""
    return next((name for name in prefill.member.transports if name in decode.member.transports), None)
