"""How many may wait: one tenant alone up to the limit, and whatever some have taken, another finds room."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.shared_bound import SharedBound
from proxy.admission.waiting_room import RoomFull, WaitingRoom
from proxy.request.priority import NORMAL, Priority

BATCH = Priority(is_batch=True)
MANY = 1 << 20


def fill(room: WaitingRoom, tenant: str, priority: Priority = NORMAL) -> int:
    """As many as it gets."""
    count = 0
    while True:
        try:
            room.enter(tenant, 1, priority)
        except RoomFull:
            return count
        count += 1


@pytest.mark.parametrize("limit", [1, 2, 3, 16, 2048])
def test_one_tenant_alone_gets_all_the_places(limit: int) -> None:
    assert fill(WaitingRoom(limit, MANY), "a") == limit


def test_the_message_names_how_many_wait_and_how_many_of_them_are_the_tenants() -> None:
    room = WaitingRoom(4, MANY)
    fill(room, "a")
    with pytest.raises(RoomFull, match=r"^4 requests wait already$"):
        room.enter("a", 1, NORMAL)
    fill(room, "b")
    with pytest.raises(RoomFull, match=r"^6 requests wait already, 2 of them this tenant's$"):
        room.enter("b", 1, NORMAL)


@pytest.mark.parametrize(("num_floods", "share"), [(1, 1024), (2, 512), (3, 256), (8, 8)])
def test_a_tenant_finds_places_however_many_others_have_taken_all_they_could(num_floods: int, share: int) -> None:
    room = WaitingRoom(2048, MANY)
    for n in range(num_floods):
        fill(room, f"flood {n}")
    assert fill(room, "another") == share


def test_tenants_that_fill_it_at_the_same_time_get_the_same() -> None:
    room, got = WaitingRoom(300, MANY), dict.fromkeys("abcde", 0)
    for _ in range(300):
        for tenant in got:
            try:
                room.enter(tenant, 1, NORMAL)
            except RoomFull:
                continue
            got[tenant] += 1
    assert set(got.values()) == {100}


def test_batch_requests_leave_an_eighth_of_the_places_to_others() -> None:
    room = WaitingRoom(16, MANY)
    assert fill(room, "a", BATCH) == 14
    with pytest.raises(RoomFull, match=r"14 requests .* the other places"):
        room.enter("a", 1, BATCH)
    assert fill(room, "a") == 2
    with pytest.raises(RoomFull, match=r"16 requests wait already$"):
        room.enter("a", 1, NORMAL)


def test_all_choices_of_a_request_get_a_place_or_none() -> None:
    room = WaitingRoom(4, MANY)
    room.enter("a", 2, NORMAL)
    with pytest.raises(RoomFull):
        room.enter("a", 3, NORMAL)
    room.enter("a", 2, NORMAL)


def test_prompt_tokens_have_a_bound_of_their_own() -> None:
    room = WaitingRoom(100, 1000)
    room.enter("a", 2, NORMAL)
    room.bring("a", 900, NORMAL)
    with pytest.raises(RoomFull, match="900 prompt tokens"):
        room.bring("a", 101, NORMAL)
    room.bring("a", 100, NORMAL)
    room.leave("a", 1, 900)
    room.bring("a", 900, NORMAL)


@settings(deadline=None)
@given(
    limit=st.integers(1, 50),
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-20, 20)), max_size=100),
)
def test_what_is_taken_adds_up_and_stays_below_twice_the_limit(limit: int, steps: list[tuple[str, int]]) -> None:
    bound, taken = SharedBound(), dict.fromkeys("abcd", 0)
    for tenant, amount in steps:
        if amount > 0 and bound.fits(tenant, amount, limit):
            bound.take(tenant, amount)
            taken[tenant] += amount
        elif amount < 0 and taken[tenant] >= -amount:
            bound.give_back(tenant, -amount)
            taken[tenant] += amount
        assert bound.total == sum(taken.values()) < 2 * limit
        assert {tenant: bound[tenant] for tenant in taken} == taken
        assert max(taken.values()) <= limit


@settings(deadline=None)
@given(limit=st.integers(1, 50), sizes=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9)), max_size=99))
def test_a_newcomer_finds_room_for_half_of_what_is_free(limit: int, sizes: list[tuple[str, int]]) -> None:
    bound = SharedBound()
    for tenant, amount in sizes:
        if bound.fits(tenant, amount, limit):
            bound.take(tenant, amount)
    free = 2 * limit - bound.total
    assert bound.fits("newcomer", free // 2, limit)
