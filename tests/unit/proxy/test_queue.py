"""Who is next: priorities, arrival, ageing and lanes; nobody waits for ever, whatever comes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.waiting_room import WaitingRoom
from proxy.request.priority import MAX_LEVEL, Priority
from proxy.routing.queue import Asked, RequestQueue

AGEING_S = 2.0
BATCH = Priority(is_batch=True)
NORMAL = Priority()


MANY = 1 << 20


def new_queue(limit: int = 1000) -> RequestQueue[str]:
    return RequestQueue(WaitingRoom(limit, MANY), AGEING_S)


def push(
    queue: RequestQueue[str],
    entry: str,
    priority: Priority = NORMAL,
    arrived_at: float = 0.0,
    *,
    tenant: str = "",
    num_tokens: int = 0,
    is_long: bool = False,
    max_running: int | None = None,
) -> None:
    queue.room.enter(tenant, 1, priority)
    queue.room.bring(tenant, num_tokens, priority)
    queue.push(entry, Asked(tenant, priority, arrived_at, num_tokens, is_long, max_running))


def drained(queue: RequestQueue[str]) -> list[str]:
    entries = []
    while heads := queue.heads():
        entries.append(heads[0])
        assert queue.remove(heads[0])
    return entries


def test_first_come_is_first_served_within_a_priority() -> None:
    queue = new_queue()
    for entry in "abc":
        push(queue, entry)
    assert drained(queue) == ["a", "b", "c"]


def test_who_was_admitted_first_is_first_though_its_prompt_took_longer_to_tokenise() -> None:
    queue = new_queue()
    push(queue, "short", arrived_at=1.1)
    push(queue, "long", arrived_at=1.0)
    assert drained(queue) == ["long", "short"]


def test_interactive_goes_before_batch_and_lower_levels_go_first_in_each() -> None:
    queue = new_queue()
    for priority in (
        Priority(True, -10),
        Priority(False, 10),
        Priority(True, 3),
        Priority(False, 0),
        Priority(False, -1),
    ):
        push(queue, f"{priority.label}{priority.level}", priority)
    assert drained(queue) == ["interactive-1", "interactive0", "interactive10", "batch-10", "batch3"]


def test_waiting_makes_up_for_priority() -> None:
    queue = new_queue()
    push(queue, "batch", BATCH, arrived_at=0.0)
    push(queue, "later", NORMAL, arrived_at=21 * AGEING_S + 0.1)
    push(queue, "sooner", NORMAL, arrived_at=21 * AGEING_S - 0.1)
    assert drained(queue) == ["sooner", "batch", "later"]


def test_who_cannot_go_holds_up_its_own_lane_only() -> None:
    queue = new_queue()
    push(queue, "long", is_long=True)
    push(queue, "longer", is_long=True)
    push(queue, "short")
    push(queue, "batch", BATCH)
    assert queue.heads() == ["long", "short", "batch"]
    assert queue.remove("short")
    assert queue.heads() == ["long", "batch"]
    assert queue.remove("long")
    assert queue.heads() == ["longer", "batch"]


def test_an_entry_can_leave_from_anywhere_once() -> None:
    queue = new_queue()
    for entry in "abc":
        push(queue, entry)
    assert queue.remove("b")
    assert not queue.remove("b")
    assert queue.remove("a")
    assert queue.heads() == ["c"]
    assert queue.room.requests.total == 1


def test_an_empty_queue_has_no_first() -> None:
    assert new_queue().heads() == []


def test_each_class_is_counted() -> None:
    queue = new_queue()
    push(queue, "a", BATCH)
    push(queue, "b", BATCH, is_long=True)
    push(queue, "c")
    assert (queue.num_waiting(batch=True), queue.num_waiting(batch=False)) == (2, 1)


@dataclass(frozen=True)
class Arrival:
    priority: Priority
    is_long: bool


ARRIVALS = st.builds(
    Arrival, st.builds(Priority, st.booleans(), st.integers(-MAX_LEVEL, MAX_LEVEL)), is_long=st.booleans()
)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("push"), ARRIVALS, st.floats(0, 5)),
            st.tuples(st.just("take"), st.booleans(), st.booleans()),
            st.tuples(st.just("cancel"), st.integers(0, 1000)),
        ),
        max_size=60,
    )
)
def test_the_first_of_the_open_lanes_is_the_lowest_in_order_of_all_in_them(steps: list[tuple[object, ...]]) -> None:
    """Against a list that is searched each time."""
    queue = new_queue(1000)
    waiting: dict[str, tuple[float, int, Arrival]] = {}
    now = 0.0
    for number, step in enumerate(steps):
        match step:
            case ("push", Arrival() as arrival, float(pause_s)):
                now += pause_s
                push(queue, str(number), arrival.priority, now, is_long=arrival.is_long)
                waiting[str(number)] = (arrival.priority.order(now, AGEING_S), number, arrival)
            case ("take", bool(takes_long), bool(takes_batch)):

                def may_go(entry: str, takes_long: bool = takes_long, takes_batch: bool = takes_batch) -> bool:
                    arrival = waiting[entry][2]
                    return (takes_long or not arrival.is_long) and (takes_batch or not arrival.priority.is_batch)

                first = next(filter(may_go, queue.heads()), None)
                assert first == min(filter(may_go, waiting), key=lambda entry: waiting[entry][:2], default=None)
                if first is not None:
                    assert queue.remove(first)
                    del waiting[first]
            case ("cancel", int(index)) if waiting:
                entry = sorted(waiting)[index % len(waiting)]
                assert queue.remove(entry)
                del waiting[entry]
        assert len(queue) == len(waiting)
    assert sorted(drained(queue)) == sorted(waiting)


@given(
    target=ARRIVALS,
    before=st.lists(ARRIVALS, max_size=20),
    later=st.lists(ARRIVALS, min_size=1, max_size=5),
    lane_is_free=st.lists(st.booleans(), min_size=1, max_size=4).filter(any),
)
def test_everybody_leaves_within_a_bound_that_no_later_arrival_can_move(
    target: Arrival, before: list[Arrival], later: list[Arrival], lane_is_free: list[bool]
) -> None:
    """One leaves and one more arrives, each AGEING_S, for ever; long ones leave only while their lane is free."""
    queue = new_queue(1000)
    for i, arrival in enumerate(before):
        push(queue, f"before {i}", arrival.priority, is_long=arrival.is_long)
    push(queue, "target", target.priority, is_long=target.is_long)
    is_long = {f"before {i}": arrival.is_long for i, arrival in enumerate(before)} | {"target": target.is_long}
    num_sooner = len(before) + target.priority.rank + MAX_LEVEL + 1  # arrivals whose order can be lower
    for turn, arrival, is_free in zip(
        range(1, (num_sooner + 1) * len(lane_is_free) + 1), itertools.cycle(later), itertools.cycle(lane_is_free)
    ):
        first = next((entry for entry in queue.heads() if is_free or not is_long[entry]), None)
        if first is not None:
            queue.remove(first)
        if first == "target":
            return
        is_long[f"later {turn}"] = arrival.is_long
        push(queue, f"later {turn}", arrival.priority, turn * AGEING_S, is_long=arrival.is_long)
    raise AssertionError("it starved")
