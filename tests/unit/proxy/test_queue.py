from __future__ import annotations

import pytest

from proxy.queue import QueueFull, RequestQueue


def filled(*entries: str, limit: int = 3) -> RequestQueue[str]:
    queue: RequestQueue[str] = RequestQueue(limit)
    for entry in entries:
        queue.reserve()
        queue.push(entry)
    return queue


def test_first_come_is_first_served() -> None:
    queue = filled("a", "b", "c")
    assert queue.peek() == "a"
    assert queue.remove("a")
    assert queue.peek() == "b"


def test_reservations_count_against_the_limit() -> None:
    queue = filled("a", "b")
    queue.reserve()
    with pytest.raises(QueueFull, match="3 requests"):
        queue.reserve()
    queue.cancel()
    queue.reserve()
    queue.push("c")
    assert len(queue) == 3
    assert queue.num_reserved == 0


def test_an_entry_can_leave_from_anywhere_once() -> None:
    queue = filled("a", "b", "c")
    assert queue.remove("b")
    assert not queue.remove("b")
    assert queue.remove("a")
    assert queue.peek() == "c"
    queue.reserve()


def test_an_empty_queue_has_no_first() -> None:
    assert filled().peek() is None
