"""Requests that wait for a worker: bounded, by priority and arrival, in lanes. Pure: no clock, no loop.

A place is reserved before a request's prompt is tokenised, so that a flood is refused before it costs anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from sortedcontainers import SortedKeyList

from proxy.request.priority import Priority

T = TypeVar("T")
Lane = tuple[bool, bool]  # is_batch, is_long
LANES: tuple[Lane, ...] = ((False, False), (False, True), (True, False), (True, True))


class QueueFull(Exception):
    """No place is left; the message names the limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Place(Generic[T]):
    entry: T
    lane: Lane
    key: tuple[float, int]  # the priority's order, and a number that grows with each entry


class RequestQueue(Generic[T]):
    """Maintains `len(queue) + num_reserved <= max_requests`, and each lane in the order of its entries' priorities.

    Batch requests never take the last eighth of the places, so a flood of them refuses no interactive one.
    """

    def __init__(self, max_requests: int, priority_ageing_s: float) -> None:
        self.num_reserved = 0
        self._max_requests = max_requests
        self._priority_ageing_s = priority_ageing_s
        self._num_pushed = 0
        self._places: dict[T, Place[T]] = {}
        self._lanes: dict[Lane, SortedKeyList[Place[T], tuple[float, int]]] = {
            lane: SortedKeyList(key=lambda place: place.key) for lane in LANES
        }

    def __len__(self) -> int:
        return len(self._places)

    def num_waiting(self, *, batch: bool) -> int:
        return sum(len(places) for lane, places in self._lanes.items() if lane[0] is batch)

    def limit(self, *, batch: bool) -> int:
        """Requests that may wait, of both kinds together, when one of this kind comes last."""
        return self._max_requests - self._max_requests // 8 if batch else self._max_requests

    def reserve(self, *, batch: bool) -> None:
        """Takes a place, to be given back with `cancel` or used with `push`. Raises QueueFull."""
        num_taken = len(self._places) + self.num_reserved
        if num_taken >= self.limit(batch=batch):
            kept = "; the other places are for interactive ones" if num_taken < self._max_requests else ""
            raise QueueFull(f"{num_taken} requests wait already{kept}")
        self.num_reserved += 1

    def cancel(self) -> None:
        self.num_reserved -= 1

    def push(self, entry: T, priority: Priority, arrived_at: float, *, is_long: bool = False) -> None:
        """Puts `entry` in order, in a place that was reserved."""
        self.num_reserved -= 1
        self._num_pushed += 1
        key = (priority.order(arrived_at, self._priority_ageing_s), self._num_pushed)
        place = self._places[entry] = Place(entry, (priority.is_batch, is_long), key)
        self._lanes[place.lane].add(place)

    def heads(self) -> list[T]:
        """The first of each lane, in the order in which they should go. Who cannot go holds up its own lane only."""
        firsts = [places[0] for places in self._lanes.values() if places]
        return [place.entry for place in sorted(firsts, key=lambda place: place.key)]

    def remove(self, entry: T) -> bool:
        """False when it is not here (any more)."""
        place = self._places.pop(entry, None)
        if place is None:
            return False
        self._lanes[place.lane].remove(place)
        return True
