"""One tenant's flood delays no other: what each gets while both wait, and how long a newcomer waits."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.request.priority import Priority
from proxy.routing.fair_share import FairShare
from proxy.routing.queue import RequestQueue, cost
from tests.unit.proxy.test_queue import new_queue, push

LENGTHS = st.integers(0, 500)


def take_first(queue: RequestQueue[str]) -> str:
    entry = queue.heads()[0]
    queue.take(entry)
    return entry


def drained(queue: RequestQueue[str]) -> list[str]:
    return [take_first(queue) for _ in range(len(queue))]


def test_tenants_take_turns_whoever_came_first() -> None:
    queue = new_queue()
    for i in range(4):
        push(queue, f"a{i}", tenant="a", arrived_at=0.0)
    for i in range(2):
        push(queue, f"b{i}", tenant="b", arrived_at=5.0)
    assert drained(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_tenants_own_requests_go_by_priority_and_arrival() -> None:
    queue = new_queue()
    push(queue, "a", tenant="a", arrived_at=0.0)
    push(queue, "a urgent", Priority(level=-5), tenant="a", arrived_at=1.0)
    push(queue, "b", Priority(level=10), tenant="b", arrived_at=0.0)
    assert drained(queue) == ["a urgent", "b", "a"]


def test_long_prompts_count_as_much_as_many_short_ones() -> None:
    queue = new_queue()
    for i in range(2):
        push(queue, f"a{i}", tenant="a", num_tokens=10 * cost(0) - cost(0))
    for i in range(12):
        push(queue, f"b{i}", tenant="b", arrived_at=1.0)
    assert drained(queue) == ["a0", *(f"b{i}" for i in range(10)), "a1", "b10", "b11"]


def test_what_was_generated_counts_too() -> None:
    queue = new_queue()
    for i in range(3):
        push(queue, f"a{i}", tenant="a")
        push(queue, f"b{i}", tenant="b", arrived_at=1.0)
    assert take_first(queue) == "a0"
    queue.ended("a", 2 * cost(0), batch=False)
    assert drained(queue) == ["b0", "b1", "b2", "a1", "a2"]


def test_who_was_alone_owes_nothing_to_who_comes_later() -> None:
    queue = new_queue()
    push(queue, "a", tenant="a")
    for i in range(100):
        push(queue, f"a{i}", tenant="a", arrived_at=i)
        take_first(queue)
        queue.ended("a", 500, batch=False)
    push(queue, "last", tenant="a", arrived_at=200)
    for i in range(3):
        push(queue, f"b{i}", tenant="b", arrived_at=300)
    assert [entry[0] for entry in drained(queue)][:4].count("b") <= 2


def test_a_tenant_at_its_limit_of_running_requests_lets_others_by_until_one_ends() -> None:
    queue = new_queue()
    for i in range(3):
        push(queue, f"a{i}", tenant="a", max_running=2)
    push(queue, "b", tenant="b", arrived_at=9.0)
    assert [take_first(queue) for _ in range(3)] == ["a0", "b", "a1"]
    assert queue.heads() == []
    queue.ended("b", 0, batch=False)
    assert queue.heads() == []
    queue.ended("a", 0, batch=False)
    assert queue.heads() == ["a2"]


def test_the_long_and_short_prompts_of_a_tenant_are_one_share() -> None:
    queue = new_queue()
    for i in range(3):
        push(queue, f"a{i}", tenant="a")
    push(queue, "b long", tenant="b", arrived_at=5.0, is_long=True, num_tokens=3000)
    push(queue, "b", tenant="b", arrived_at=6.0)
    assert drained(queue) == ["a0", "b long", "a1", "a2", "b"]


def test_the_work_before_a_newcomer_is_no_more_of_anothers_than_of_its_own() -> None:
    queue = new_queue()
    for i in range(100):
        push(queue, f"a{i}", tenant="a", num_tokens=168)
    assert queue.work_before("a", batch=False) == 100 * 200
    assert queue.work_before("b", batch=False) == cost(0)
    push(queue, "b", tenant="b", num_tokens=368)
    assert queue.work_before("b", batch=False) == 400 + 400 + cost(0)
    assert queue.work_before("b", batch=True) == 100 * 200 + 400


@settings(deadline=None)
@given(
    lengths=st.dictionaries(st.sampled_from("abcd"), st.lists(LENGTHS, min_size=40, max_size=40), min_size=2),
    num_taken=st.integers(1, 40),
)
def test_tenants_that_all_wait_get_the_same_work_but_for_one_request(
    lengths: dict[str, list[int]], num_taken: int
) -> None:
    queue, work = new_queue(), dict.fromkeys(lengths, 0)
    size = {}
    for tenant, each in lengths.items():
        for i, num_tokens in enumerate(each):
            push(queue, f"{tenant}{i}", tenant=tenant, num_tokens=num_tokens)
            size[f"{tenant}{i}"] = cost(num_tokens)
    for _ in range(num_taken):
        entry = take_first(queue)
        work[entry[0]] += size[entry]
    assert max(work.values()) - min(work.values()) <= max(size.values())


@settings(deadline=None)
@given(
    flood=st.integers(1, 60),
    num_floods=st.integers(1, 4),
    taken_before=st.integers(0, 40),
)
def test_a_newcomer_waits_for_a_request_of_each_other_tenant_however_many_they_have(
    flood: int, num_floods: int, taken_before: int
) -> None:
    queue = new_queue()
    for n, i in itertools.product(range(num_floods), range(flood)):
        push(queue, f"flood {n} {i}", tenant=f"flood {n}")
    for _ in range(min(taken_before, len(queue) - 1)):
        take_first(queue)
    push(queue, "newcomer", tenant="newcomer", arrived_at=100.0)
    assert "newcomer" in drained(queue)[: num_floods + 1]


@settings(deadline=None)
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=10), own=LENGTHS, others=st.integers(1, 5))
def test_nobody_is_kept_waiting_by_an_endless_row_of_new_tenants(lengths: list[int], own: int, others: int) -> None:
    queue = new_queue()
    push(queue, "first", tenant="a", num_tokens=own)
    push(queue, "target", tenant="a", num_tokens=own)
    bound = 2 + (others + 2) * (1 + cost(own) // cost(0)) * (2 + max(map(cost, lengths)) // cost(0))
    for number, num_tokens in zip(range(bound), itertools.cycle(lengths)):
        while len(queue) < others + 1:
            push(queue, f"{number} {len(queue)}", tenant=f"{number} {len(queue)}", num_tokens=num_tokens, arrived_at=1)
        if take_first(queue) == "target":
            return
    raise AssertionError("it starved")


def test_what_is_remembered_of_tenants_that_left_is_bounded() -> None:
    share = FairShare()
    share.join("always")
    for i in range(10_000):
        share.join(f"{i}")
        share.charge(f"{i}", 100)
        share.leave(f"{i}")
    assert len(share._work) < 500
    share.leave("always")
    assert not share._work
