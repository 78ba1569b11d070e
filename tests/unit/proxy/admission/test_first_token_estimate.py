"""What is known of the wait: a rate that is only seen while somebody waits, and nothing of an idle cluster."""

from __future__ import annotations

import pytest

from proxy.admission.allowance import Allowance
from proxy.admission.drain_rate import FORGET_S, DrainRate
from proxy.admission.first_token_estimate import FirstTokenEstimate


def drain(per_second: float, *, seconds: float = 10.0, step_s: float = 0.1, start: float = 0.0) -> DrainRate:
    rate = DrainRate()
    rate.looked(1e9, start, is_waiting=True)  # there was room: that says nothing
    for n in range(1, round(seconds / step_s) + 1):
        rate.looked(per_second * step_s, start + n * step_s, is_waiting=True)
    return rate


def test_a_steady_rate_is_seen_as_it_is() -> None:
    assert drain(2000).per_second(10.0) == pytest.approx(2000, rel=0.05)


def test_nothing_is_known_before_enough_was_seen() -> None:
    assert drain(2000, seconds=0.2).per_second(0.2) is None
    assert DrainRate().per_second(5.0) is None


def test_nothing_is_known_while_nobody_waits() -> None:
    rate = drain(2000)
    rate.looked(100, 10.1, is_waiting=False)
    assert rate.per_second(10.2) is None


def test_time_without_anybody_waiting_does_not_count() -> None:
    rate = drain(2000)
    rate.looked(0, 10.1, is_waiting=False)
    rate.looked(0, 40.0, is_waiting=True)
    assert rate.per_second(40.0) == pytest.approx(2000, rel=0.05)


def test_workers_that_take_nothing_any_more_are_noticed_though_nothing_happens() -> None:
    rate = drain(2000)
    assert rate.per_second(20.0) == pytest.approx(1000 * 0.5, rel=0.5)
    later = rate.per_second(70.0)
    assert later is not None
    assert later < 20


def test_after_a_long_rest_the_cluster_may_be_another() -> None:
    rate = drain(2000)
    rate.looked(0, 10.1, is_waiting=False)
    rate.looked(0, 10.2 + FORGET_S, is_waiting=True)
    assert rate.per_second(11 + FORGET_S) is None


def test_the_first_token_comes_after_all_that_waits_and_a_workers_part() -> None:
    estimate = FirstTokenEstimate(drain(2000))
    assert estimate.first_token_s(4000, 10.0) is None  # no request has had its first token yet
    estimate.saw(0.5)
    assert estimate.first_token_s(4000, 10.0) == pytest.approx(2.5, rel=0.05)
    assert estimate.first_token_s(0, 10.0) == pytest.approx(0.5)


def test_the_workers_part_follows_what_is_seen() -> None:
    estimate = FirstTokenEstimate(drain(2000))
    estimate.saw(0.1)
    for _ in range(50):
        estimate.saw(1.0)
    assert estimate.first_token_s(0, 10.0) == pytest.approx(1.0, rel=0.05)


def test_an_allowance_fills_steadily_up_to_a_minutes_worth() -> None:
    allowance = Allowance(60, now=0.0)
    for _ in range(60):
        assert allowance.wait_s(0.0) == 0
        allowance.take(1, 0.0)
    assert allowance.wait_s(0.0) == pytest.approx(1.0)
    assert allowance.wait_s(1.5) == 0
    allowance.take(1, 100.0)
    assert allowance.wait_s(100.0) == 0
    allowance.take(179, 100.0)
    assert allowance.wait_s(100.0) == pytest.approx(121.0)
