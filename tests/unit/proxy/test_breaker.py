from __future__ import annotations

import pytest

from proxy.workers.breaker import FIRST_PAUSE_S, LAST_PAUSE_S, MAX_FAILURES, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broken(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(MAX_FAILURES):
        assert not breaker.advises_against
        breaker.failed()
    return breaker


def test_failures_in_a_row_keep_requests_away_for_a_short_time(broken: Breaker, clock: Clock) -> None:
    assert broken.advises_against
    clock.now += FIRST_PAUSE_S
    assert not broken.advises_against


def test_a_success_between_them_starts_the_count_anew(clock: Clock) -> None:
    breaker = Breaker(clock)
    for _ in range(5 * MAX_FAILURES):
        breaker.failed()
        breaker.succeeded()
    assert not breaker.advises_against


def test_after_a_pause_one_request_is_tried_and_its_success_ends_all_doubt(broken: Breaker, clock: Clock) -> None:
    clock.now += FIRST_PAUSE_S
    broken.sent("trial")
    assert broken.advises_against
    broken.succeeded()
    assert not broken.advises_against


def test_a_trial_that_fails_makes_the_pause_longer_up_to_a_limit(broken: Breaker, clock: Clock) -> None:
    for doublings in range(1, 9):
        clock.now += LAST_PAUSE_S
        broken.sent("trial")
        broken.failed()
        pause_s = min(FIRST_PAUSE_S * 2**doublings, LAST_PAUSE_S)
        clock.now += pause_s - 0.01
        assert broken.advises_against
        clock.now += 0.01
        assert not broken.advises_against


def test_a_trial_whose_client_goes_away_makes_room_for_the_next(broken: Breaker, clock: Clock) -> None:
    clock.now += FIRST_PAUSE_S
    broken.sent("trial")
    broken.ended("another one")
    assert broken.advises_against
    broken.ended("trial")
    assert not broken.advises_against


def test_a_trial_that_never_ends_blocks_nothing_for_good(broken: Breaker, clock: Clock) -> None:
    clock.now += FIRST_PAUSE_S
    broken.sent("trial")
    clock.now += LAST_PAUSE_S
    assert not broken.advises_against
