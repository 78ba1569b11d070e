"""Routing policies, by table."""

from __future__ import annotations

import pytest

from proxy.routing.router import WorkerView, decode_cost, least_loaded, prefill_cost, round_robin


def view(num_requests: int = 0, num_queued_tokens: int = 0) -> WorkerView:
    return WorkerView("w", num_waiting=0, num_requests=num_requests, num_queued_tokens=num_queued_tokens)


def test_round_robin_takes_turns_whatever_the_load() -> None:
    views = [view(9, 9), view(), view(5)]
    assert [round_robin(views, turn, decode_cost) for turn in range(5)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("views", "for_prefill", "for_decode"),
    [
        ([view(1, 500), view(3, 20)], 1, 0),  # few tokens before a prompt; few streams beside a stream
        ([view(2, 100), view(1, 100)], 1, 1),
        ([view(1, 200), view(1, 100)], 1, 1),
    ],
)
def test_least_loaded_weighs_what_matters_to_the_role(
    views: list[WorkerView], for_prefill: int, for_decode: int
) -> None:
    assert least_loaded(views, 0, prefill_cost) == for_prefill
    assert least_loaded(views, 0, decode_cost) == for_decode


def test_equally_loaded_workers_take_turns() -> None:
    views = [view(), view(), view(7)]
    assert {least_loaded(views, turn, decode_cost) for turn in range(3)} == {0, 1}
