"""Requests that wait for a worker: bounded, first come first served. Pure: no clock, no loop.

A place is reserved before a request's prompt is tokenised, so that a flood is refused before it costs anything.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFull(Exception):
    """No place is left; the message names the limit."""


class RequestQueue(Generic[T]):
    """Maintains `len(queue) + num_reserved <= max_requests`, in the order of `push`."""

    def __init__(self, max_requests: int) -> None:
        self.max_requests = max_requests
        self.num_reserved = 0
        self._entries: dict[T, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self) -> None:
        """Takes a place, to be given back with `cancel` or used with `push`. Raises QueueFull."""
        if len(self._entries) + self.num_reserved >= self.max_requests:
            raise QueueFull(f"{self.max_requests} requests wait already")
        self.num_reserved += 1

    def cancel(self) -> None:
        self.num_reserved -= 1

    def push(self, entry: T) -> None:
        """Puts `entry` last, in a place that was reserved."""
        self.num_reserved -= 1
        self._entries[entry] = None

    def peek(self) -> T | None:
        return next(iter(self._entries), None)

    def remove(self, entry: T) -> bool:
        """False when it is not here (any more)."""
        if entry not in self._entries:
            return False
        del self._entries[entry]
        return True
