"""The wait before the next start."""

from __future__ import annotations

from cluster.backoff import Backoff
from cluster.spec import RestartSpec

FIRST = Backoff(RestartSpec(first_delay_s=1.0, longest_delay_s=4.0, stable_after_s=60.0))


def test_each_early_death_doubles_the_wait_up_to_its_limit() -> None:
    backoff, waits = FIRST, []
    for _ in range(1000):
        backoff = backoff.after_life(lived_s=1.0)
        waits.append(backoff.delay_s)
    assert waits[:4] == [1.0, 2.0, 4.0, 4.0]
    assert waits[-1] == 4.0


def test_a_stable_life_forgets_the_early_deaths() -> None:
    assert FIRST.after_life(1.0).after_life(60.0).delay_s == 0.0
