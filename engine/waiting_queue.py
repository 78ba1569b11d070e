"""Requests that wait for blocks: by priority and arrival, in lanes, so that a long prompt does not hold up short ones.

Pure. An order is fixed when a request is added: waiting makes up for priority at a fixed rate, so nobody starves and
nothing is ever sorted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from enum import Enum

from sortedcontainers import SortedKeyList

from engine.request import Request


class Lane(Enum):
    COMPUTED = "computed"  # its KV is elsewhere: to be received, or swapped out
    SHORT = "short"
    LONG = "long"


class WaitingQueue:
    """Maintains each request in one lane, in `key` order, and how many tokens all of them have to compute."""

    def __init__(self, priority_ageing_s: float, long_threshold: int) -> None:
        self.num_uncomputed_tokens = 0
        self._priority_ageing_s = priority_ageing_s
        self._long_threshold = long_threshold  # tokens
        self._lanes: dict[Lane, SortedKeyList[Request, tuple[bool, float]]] = {
            lane: SortedKeyList(key=self.key) for lane in Lane
        }

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Request]:
        """Everybody, in order."""
        return iter(sorted((request for lane in self._lanes.values() for request in lane), key=self.key))

    def order(self, request: Request) -> float:
        """Lower is sooner: when it would have arrived, were its priority 0."""
        return request.arrived_at + request.priority * self._priority_ageing_s

    def key(self, request: Request) -> tuple[bool, float]:
        """Prompts that a peer, holding blocks itself, waits for come before all others."""
        return (not request.pinned, self.order(request))

    def lane(self, request: Request) -> Lane:
        if request.awaits_kv or request.swapped:
            return Lane.COMPUTED
        return Lane.LONG if self.is_long(request) else Lane.SHORT

    def is_long(self, request: Request) -> bool:
        return request.num_tokens > self._long_threshold

    def add(self, request: Request) -> None:
        self._lanes[self.lane(request)].add(request)
        self.num_uncomputed_tokens += request.num_uncomputed

    def remove(self, request: Request) -> None:
        """Raises ValueError when it does not wait. What its place depends on is as it was when it was added."""
        self._lanes[self.lane(request)].remove(request)
        self.num_uncomputed_tokens -= request.num_uncomputed

    def first(self, lanes: Set[Lane]) -> Request | None:
        """Who is next in these lanes."""
        heads = [requests[0] for lane, requests in self._lanes.items() if requests and lane in lanes]
        return min(heads, key=self.key, default=None)
