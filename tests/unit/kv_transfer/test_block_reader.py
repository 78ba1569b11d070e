"""The order in which hand-offs' reads go, where they wait for one another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.block_reader import order_near

TIMES = st.floats(-1e4, 1e4)
TIMEOUT_S = 30.0


@given(now=TIMES, orders=st.tuples(TIMES, TIMES))
def test_of_those_who_come_together_nobody_overtakes_against_their_priorities(
    now: float, orders: tuple[float, float]
) -> None:
    first, second = sorted(orders)
    assert order_near(now, first, TIMEOUT_S) <= order_near(now, second, TIMEOUT_S)


@given(now=TIMES, waiting=TIMES, newcomer=TIMES)
def test_after_half_of_its_time_nobody_who_comes_goes_before_a_waiter(
    now: float, waiting: float, newcomer: float
) -> None:
    later = now + TIMEOUT_S / 2 + 1e-6
    assert order_near(now, waiting, TIMEOUT_S) <= order_near(later, newcomer, TIMEOUT_S)


def test_a_priority_counts_for_those_who_come_within_moments() -> None:
    batch, interactive = 100.0 + 21 * 2.0, 100.1
    assert order_near(100.1, interactive, TIMEOUT_S) < order_near(100.0, batch, TIMEOUT_S)
