"""Sends waiting requests to workers: those that were started before first, then the queue, only a little ahead.

A worker's own queue stays short (`dispatch_ahead`), so that the order is decided here and not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.config import ProxyConfig
from proxy.metrics import ProxyMetrics
from proxy.queue import RequestQueue
from proxy.router import POLICIES, Cost, decode_cost, prefill_cost
from proxy.worker_link import WorkerLink
from proxy.worker_pool import WorkerPool

NO_PREFILL_WORKER = "no_prefill_worker"
MAX_UNREAD = 8  # computed prompts that one decode worker has not taken over: more means that it is full


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request runs next. Without `prefill` the decode worker computes the prompt, for `local_reason`."""

    decode: WorkerLink
    prefill: WorkerLink | None
    transport: str | None
    local_reason: str | None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of its next placement."""

    decode: WorkerLink | None = None  # stay here while it is usable
    avoid: frozenset[str] = frozenset()  # incarnations; taken only when there is no other
    local_reason: str | None = None  # not None: without a prefill worker


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A request that waits for workers. One of the two is called, once, unless it is withdrawn."""

    wish: Wish
    place: Callable[[Placement], None]
    give_up: Callable[[], None]  # no decode worker came back in time


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
        self._patience: asyncio.TimerHandle | None = None  # while there is no decode worker

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
            self._started.pop(waiter, None)

    def pump(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        for waiter in list(self._started):
            placement = self._placement(waiter.wish, gated=False)
            if placement is not None:
                del self._started[waiter]
                waiter.place(placement)
        while (first := self.queue.peek()) is not None:
            placement = self._placement(first.wish, gated=True)
            if placement is None:
                break
            self.queue.remove(first)
            first.place(placement)
        self._watch_patience()

    def _placement(self, wish: Wish, *, gated: bool) -> Placement | None:
        """None: not now."""
        prefills = self._pool.prefill_links() if wish.local_reason is None else []
        decodes = self._pool.decode_links()
        if wish.decode in decodes:
            decodes = [wish.decode]
        elif gated:
            decodes = [link for link in decodes if self._has_room(link, for_prompt=not prefills)]
        if not decodes:
            return None
        decode = self._choose(decodes, wish, decode_cost if prefills else prefill_cost)
        pairs = [link for link in prefills if shared_transport(link, decode) is not None]
        if not pairs:
            return self._decided(Placement(decode, None, None, wish.local_reason or NO_PREFILL_WORKER))
        if gated:
            pairs = [link for link in pairs if self._has_room(link, for_prompt=True)]
        if not pairs:
            return None
        prefill = self._choose(pairs, wish, prefill_cost)
        return self._decided(Placement(decode, prefill, shared_transport(prefill, decode), None))

    def _has_room(self, link: WorkerLink, *, for_prompt: bool) -> bool:
        if for_prompt:
            return link.view().num_waiting < self._config.dispatch_ahead
        return link.tally.num_unread < MAX_UNREAD

    def _choose(self, links: Sequence[WorkerLink], wish: Wish, cost: Cost) -> WorkerLink:
        links = [link for link in links if link.incarnation not in wish.avoid] or links
        return links[self._policy([link.view() for link in links], self._turn, cost)]

    def _decided(self, placement: Placement) -> Placement:
        self._turn += 1
        self._metrics.routing_decisions.labels(self._config.routing).inc()
        return placement

    def _watch_patience(self) -> None:
        if self._patience is not None and (self.has_decode or not self.num_waiting):
            self._patience.cancel()
            self._patience = None
        elif self._patience is None and self.num_waiting and not self.has_decode:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(self._config.recovery_timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._patience = None
        waiters = [*self._started]
        self._started.clear()
        while (first := self.queue.peek()) is not None:
            self.queue.remove(first)
            waiters.append(first)
        for waiter in waiters:
            waiter.give_up()


def shared_transport(prefill: WorkerLink, decode: WorkerLink) -> str | None:
    """The first of the prefill worker's transports that the decode worker has too."""
    return next((name for name in prefill.member.transports if name in decode.member.transports), None)
