"""How often a request is tried again, and where."""

from __future__ import annotations

import pytest

from proxy.request.retry_budget import BudgetSpent, RetryBudget
from proxy.routing.placement import Constraints
from proxy.routing.prefix_index import PrefixIndex
from proxy.workers.worker_link import LinkTimes, WorkerLink
from proxy.workers.worker_service import DECODE
from rpc import control_pb2


def link(incarnation: str) -> WorkerLink:
    return WorkerLink(
        control_pb2.Member(incarnation=incarnation), DECODE, "proxy", lambda: None, LinkTimes(), PrefixIndex(1)
    )


def test_after_its_hand_offs_failed_a_request_is_computed_where_it_decodes() -> None:
    budget, decode = RetryBudget(max_attempts=9, max_handoff_attempts=2), link("d")
    budget.handoff_failed()
    budget.avoid(link("p"))
    assert budget.next_constraints(decode) == Constraints(decode, avoid=frozenset(["p"]))
    budget.handoff_failed()
    assert budget.next_constraints(decode).local_reason == "handoff_failed"


def test_a_hand_off_that_can_never_work_is_not_tried_twice() -> None:
    budget = RetryBudget(max_attempts=9, max_handoff_attempts=5)
    budget.handoff_failed(for_good=True)
    assert budget.next_constraints(None).local_reason == "handoff_failed"


def test_all_attempts_share_one_limit() -> None:
    budget = RetryBudget(max_attempts=2, max_handoff_attempts=2)
    budget.begin_attempt()
    budget.next_constraints(None)
    budget.begin_attempt()
    with pytest.raises(BudgetSpent, match="max_attempts"):
        budget.next_constraints(None)


def test_moves_are_no_failures_and_rest_when_they_come_often() -> None:
    budget = RetryBudget(max_attempts=1, max_handoff_attempts=1)
    rests = []
    for number in range(12):
        budget.begin_attempt()
        (budget.link_lost if number % 2 else budget.handed_back)(link("d"))
        budget.next_constraints(None)
        rests.append(budget.rest_s)
    assert rests == [0.0] * 4 + [0.1, 0.2, 0.4, 0.8, 1.6] + [2.0] * 3
    budget.begin_attempt()
    with pytest.raises(BudgetSpent, match="1 attempts failed"):
        budget.next_constraints(None)


def test_workers_whose_links_broke_are_remembered_once_each() -> None:
    budget = RetryBudget(max_attempts=9, max_handoff_attempts=9)
    for incarnation in ("a", "b", "a"):
        budget.link_lost(link(incarnation))
    assert budget.next_constraints(None).lost == {"a", "b"}
