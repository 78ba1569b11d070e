"""The newest records of what a process did, for whoever looks later; older ones make room.

Writing costs the same whatever is recorded, and nobody who reads holds a writer up for longer than a copy of the list.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class RecordLog(Generic[T]):
    """Maintains the newest `capacity` records, numbered from 0 in the order they came. Any thread may call it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._records: deque[T] = deque(maxlen=capacity)
        self._next_number = 0
        self._lock = threading.Lock()

    def append(self, record: T) -> None:
        with self._lock:
            self._records.append(record)
            self._next_number += 1

    def since(self, number: int) -> tuple[int, list[T]]:
        """The records from `number` on, as far as they are still kept, and the number of the first of them."""
        with self._lock:
            records, end = list(self._records), self._next_number
        first = min(max(number, end - len(records)), end)
        return first, records[len(records) - (end - first) :]
