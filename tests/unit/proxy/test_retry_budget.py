"""How often a request is tried again, and where."""

from __future__ import annotations

import pytest

from proxy.dispatcher import Wish
from proxy.retry_budget import BudgetSpent, RetryBudget
from proxy.worker_link import DECODE, LinkTimes, WorkerLink
from rpc import control_pb2


def link(incarnation: str) -> WorkerLink:
    return WorkerLink(control_pb2.Member(incarnation=incarnation), DECODE, "proxy", lambda: None, LinkTimes())


def test_after_its_hand_offs_failed_a_request_is_computed_where_it_decodes() -> None:
    budget, decode = RetryBudget(max_attempts=9, max_handoff_attempts=2), link("d")
    budget.handoff_failed()
    budget.shun(link("p"))
    wish = budget.next_wish(decode)
    assert wish == Wish(decode, frozenset(["p"]), None)
    budget.handoff_failed()
    assert budget.next_wish(decode).local_reason == "handoff_failed"


def test_a_hand_off_that_can_never_work_is_not_tried_twice() -> None:
    budget = RetryBudget(max_attempts=9, max_handoff_attempts=5)
    budget.handoff_failed(for_good=True)
    assert budget.next_wish(None).local_reason == "handoff_failed"


def test_all_attempts_share_one_limit() -> None:
    budget = RetryBudget(max_attempts=2, max_handoff_attempts=2)
    budget.num_attempts = 1
    budget.next_wish(None)
    budget.num_attempts = 2
    with pytest.raises(BudgetSpent, match="max_attempts"):
        budget.next_wish(None)
    assert not budget.is_poison


def test_a_request_that_was_at_two_lost_workers_goes_no_further() -> None:
    budget = RetryBudget(max_attempts=9, max_handoff_attempts=9)
    budget.worker_lost()
    budget.next_wish(None)
    budget.worker_lost()
    with pytest.raises(BudgetSpent, match="2 workers"):
        budget.next_wish(None)
    assert budget.is_poison
