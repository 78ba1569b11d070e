"""Requests that wait for a worker: by tenant's share, priority and arrival, in lanes. Pure: no clock, no loop.

Interactive and batch requests have a lane each for short and for long prompts; the tenants of a class share it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

from proxy.admission.drain_rate import DrainRate
from proxy.admission.waiting_room import WaitingRoom
from proxy.request.priority import NORMAL, Priority
from proxy.routing.fair_share import FairShare
from proxy.routing.lane import Key, Lane, Place

T = TypeVar("T")
REQUEST_TOKENS = 32  # what a request counts as beside its prompt, however short that is


def cost(num_tokens: int) -> int:
    """Of a prompt with so many tokens."""
    return num_tokens + REQUEST_TOKENS


@dataclass(frozen=True, slots=True)
class Asked:
    """By whom, how soon, and how much: what decides about a request's turn."""

    tenant: str = ""
    priority: Priority = NORMAL
    arrived_at: float = 0.0
    num_tokens: int = 0
    is_long: bool = False
    max_running: int | None = None  # of the tenant: its requests that workers have


class RequestQueue(Generic[T]):
    """Maintains each lane's order, and what of `room` its entries take up until they leave."""

    def __init__(self, room: WaitingRoom, priority_ageing_s: float) -> None:
        self.room = room
        self.drain = DrainRate()
        self._priority_ageing_s = priority_ageing_s
        self._num_pushed = 0
        self._taken = 0.0  # since workers were last offered the queue
        self._places: dict[T, Place[T]] = {}
        self._shares = {is_batch: FairShare() for is_batch in (False, True)}
        self._work: dict[bool, Counter[str]] = {is_batch: Counter() for is_batch in (False, True)}  # that waits
        self._lanes: dict[bool, tuple[Lane[T], Lane[T]]] = {  # of each class, short and long
            is_batch: (Lane(share), Lane(share)) for is_batch, share in self._shares.items()
        }
        self._running: Counter[str] = Counter()
        self._max_running: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def num_waiting(self, *, batch: bool) -> int:
        return sum(len(lane) for lane in self._lanes[batch])

    def push(self, entry: T, asked: Asked) -> None:
        """Puts `entry` in order; its place in the room was taken before."""
        self._num_pushed += 1
        priority, tenant = asked.priority, asked.tenant
        key = (priority.order(asked.arrived_at, self._priority_ageing_s), self._num_pushed)
        place = Place(entry, tenant, priority.is_batch, asked.is_long, asked.num_tokens, key)
        self._places[entry] = place
        self._shares[place.is_batch].join(tenant)
        self._work[place.is_batch][tenant] += cost(place.num_tokens)
        self._limit_running(tenant, asked.max_running)
        self._lane(place).add(place)

    def heads(self) -> list[T]:
        """The first of each lane, in the order in which they should go. Who cannot go holds up its own lane only.

        Within a class shares decide; between classes the age of what waits, to which priorities are added.
        """
        classes: list[list[tuple[Key, int, Place[T]]]] = []
        for lanes in self._lanes.values():
            open_lanes = sorted((turn, number) for number, lane in enumerate(lanes) if (turn := lane.first_turn))
            classes.append([(lanes[n].oldest_key, n, lanes[n].first) for _, n in open_lanes])
        return [place.entry for _, _, place in heapq.merge(*classes, key=lambda head: head[0])]

    def remove(self, entry: T) -> bool:
        """It leaves without being served. False when it is not here (any more)."""
        place = self._places.pop(entry, None)
        if place is None:
            return False
        self._lane(place).remove(place)
        self._shares[place.is_batch].leave(place.tenant)
        self._subtract_work(place)
        self.room.leave(place.tenant, 1, place.num_tokens)
        return True

    def take(self, entry: T) -> None:
        """A worker gets it: that counts in its tenant's share, and it runs until `ended`."""
        place = self._places[entry]
        work = cost(place.num_tokens)
        self._taken += work
        self._shares[place.is_batch].charge(place.tenant, work)
        self._running[place.tenant] += 1
        self.remove(entry)
        self._reorder(place.tenant)

    def ended(self, tenant: str, num_generated: int, *, batch: bool) -> None:
        """One that was taken runs no more, and has generated so many tokens."""
        self._shares[batch].charge(tenant, num_generated)
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._reorder(tenant)

    def looked(self, now: float) -> None:
        """Workers were offered what waits, and have taken what they have room for."""
        self.drain.looked(self._taken, now, is_waiting=bool(self._places))
        self._taken = 0.0

    def work_before(self, tenant: str, *, batch: bool) -> float:
        """What would be taken before a new request of the tenant: at most as much of each other tenant as of itself."""
        own = self._work[batch][tenant] + REQUEST_TOKENS
        others = sum(min(work, own) for other, work in self._work[batch].items() if other != tenant)
        before = float(self._work[batch][tenant] + others)
        return before + sum(self._work[False].values()) if batch else before

    def _lane(self, place: Place[T]) -> Lane[T]:
        return self._lanes[place.is_batch][place.is_long]

    def _subtract_work(self, place: Place[T]) -> None:
        work = self._work[place.is_batch]
        work[place.tenant] -= cost(place.num_tokens)
        if not work[place.tenant]:
            del work[place.tenant]

    def _limit_running(self, tenant: str, max_running: int | None) -> None:
        if max_running == self._max_running.get(tenant):
            return
        if max_running is None:
            del self._max_running[tenant]
        else:
            self._max_running[tenant] = max_running
        self._reorder(tenant)

    def _reorder(self, tenant: str) -> None:
        limit = self._max_running.get(tenant)
        is_held = limit is not None and self._running[tenant] >= limit
        for lane in (*self._lanes[False], *self._lanes[True]):
            lane.hold(tenant, is_held=is_held)
        if not self._running[tenant]:
            del self._running[tenant]
