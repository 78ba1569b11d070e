"""Errors that clients got, newest first, those alike as one."""

from __future__ import annotations

from proxy.dashboard.recent_errors import CAPACITY, MAX_MESSAGE, RecentErrors
from proxy.errors import ApiError, ErrorCode
from proxy.request.event_buffer import Route
from proxy.request.kv_mode import KvMode


def error(reason: str, message: str = "no") -> ApiError:
    return ApiError(ErrorCode.UNAVAILABLE, message, reason=reason)


def test_those_alike_are_one_with_a_count_and_the_last_ones_words() -> None:
    errors = RecentErrors()
    errors.add(1.0, "a", error("queue_full", "12 wait"))
    errors.add(2.0, "b", error("no_worker"))
    errors.add(3.0, "c", error("queue_full", "13 wait"))
    first, second = errors.newest_first()
    assert (first.reason, first.count, first.message, first.request_id, first.at) == (
        "queue_full",
        2,
        "13 wait",
        "c",
        3.0,
    )
    assert (second.reason, second.count, second.http_status) == ("no_worker", 1, 503)


def test_at_other_workers_it_is_another_one() -> None:
    errors = RecentErrors()
    for decode in ("decode-0", "decode-1"):
        errors.add(1.0, "a", error("worker_lost"), Route(KvMode.P2P, decode, "prefill-0"))
    assert [each.decode_worker for each in errors.newest_first()] == ["decode-1", "decode-0"]


def test_the_oldest_one_goes_when_there_are_too_many_and_a_message_has_an_end() -> None:
    errors = RecentErrors()
    for number in range(CAPACITY + 1):
        errors.add(float(number), "x" * 200, error(f"reason-{number}", "long " * 1000))
    kept = errors.newest_first()
    assert [each.reason for each in kept] == [f"reason-{number}" for number in range(CAPACITY, 0, -1)]
    assert {len(each.message) for each in kept} == {MAX_MESSAGE}
    assert {len(each.request_id) for each in kept} == {64}
