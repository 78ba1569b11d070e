"""Desired against actual, without processes or clocks."""

from __future__ import annotations

from itertools import count

import pytest

from cluster.fleet import Fleet, UnknownWorkerError
from cluster.fleet_action import Retire, Start
from cluster.fleet_worker import WorkerState
from cluster.roles import RoleName
from cluster.spec import RestartSpec

RESTART = RestartSpec(first_delay_s=1.0, longest_delay_s=4.0, stable_after_s=60.0, max_failed_starts=3)


def fleet(prefill: int = 0, decode: int = 0, mixed: int = 0) -> Fleet:
    numbers = count(1)
    desired: dict[RoleName, int] = {"prefill": prefill, "decode": decode, "mixed": mixed}
    return Fleet(desired, RESTART, lambda: f"i{next(numbers)}")


def ready_fleet(decode: int) -> Fleet:
    ready = fleet(decode=decode)
    for action in ready.plan(0.0):
        ready.ready(action.name, action.incarnation, 0.0)
    return ready


def states(of: Fleet) -> dict[str, str]:
    return {name: worker.state.value for name, worker in of.workers.items()}


def test_each_pool_is_filled_to_its_desired_size() -> None:
    starts = fleet(prefill=1, decode=2, mixed=1).plan(0.0)
    assert starts == [
        Start("prefill-0", "prefill", "i1", 0),
        Start("decode-0", "decode", "i2", 0),
        Start("decode-1", "decode", "i3", 0),
        Start("mixed-0", "mixed", "i4", 0),
    ]


def test_a_plan_is_made_once() -> None:
    a_fleet = fleet(decode=2)
    assert len(a_fleet.plan(0.0)) == 2
    assert a_fleet.plan(0.0) == []


def test_a_dead_worker_is_started_again_under_its_name_after_the_backoff() -> None:
    a_fleet = ready_fleet(decode=1)
    a_fleet.ended("decode-0", "i1", "killed", now=5.0)
    assert a_fleet.plan(5.5) == []
    assert a_fleet.next_retry_at() == 6.0
    assert a_fleet.plan(6.0) == [Start("decode-0", "decode", "i2", 1)]
    assert a_fleet.next_retry_at() is None
    assert a_fleet.workers["decode-0"].last_error == "killed"


def test_a_worker_that_lived_long_is_started_again_at_once() -> None:
    a_fleet = ready_fleet(decode=1)
    a_fleet.ended("decode-0", "i1", "killed", now=60.0)
    assert a_fleet.plan(60.0) == [Start("decode-0", "decode", "i2", 1)]


def test_early_deaths_double_the_wait_up_to_its_limit() -> None:
    a_fleet = ready_fleet(decode=1)
    now, waits = 0.0, []
    for _ in range(4):
        worker = a_fleet.workers["decode-0"]
        a_fleet.ready("decode-0", worker.incarnation, now)
        a_fleet.ended("decode-0", worker.incarnation, "killed", now)
        waits.append(worker.retry_at - now)
        now = worker.retry_at
        a_fleet.plan(now)
    assert waits == [1.0, 2.0, 4.0, 4.0]


def test_a_worker_that_keeps_dying_at_start_is_given_up_with_its_error() -> None:
    a_fleet = fleet(decode=1)
    now = 0.0
    for _ in range(3):
        (start,) = a_fleet.plan(now)
        a_fleet.ended("decode-0", start.incarnation, "ValueError: no such model", now)
        now += 10.0
    assert states(a_fleet) == {"decode-0": "failed"}
    assert a_fleet.plan(now + 1000.0) == []
    assert a_fleet.next_retry_at() is None
    assert a_fleet.workers["decode-0"].last_error == "ValueError: no such model"


def test_a_start_that_works_forgives_the_failed_ones() -> None:
    a_fleet = fleet(decode=1)
    for now in (0.0, 10.0):
        (start,) = a_fleet.plan(now)
        a_fleet.ended("decode-0", start.incarnation, "slow", now)
    (start,) = a_fleet.plan(20.0)
    a_fleet.ready("decode-0", start.incarnation, 20.0)
    a_fleet.ended("decode-0", start.incarnation, "killed", 21.0)
    assert states(a_fleet) == {"decode-0": "waiting"}


def test_scaling_a_pool_gives_its_failed_workers_another_chance() -> None:
    a_fleet = fleet(decode=1)
    for now in (0.0, 10.0, 20.0):
        (start,) = a_fleet.plan(now)
        a_fleet.ended("decode-0", start.incarnation, "no memory", now)
    a_fleet.scale("decode", 1)
    assert [action.name for action in a_fleet.plan(30.0)] == ["decode-0"]


def test_scaling_up_takes_the_lowest_free_name() -> None:
    a_fleet = ready_fleet(decode=1)
    assert a_fleet.scale("decode", 3) == 1
    assert [action.name for action in a_fleet.plan(0.0)] == ["decode-1", "decode-2"]


def test_scaling_down_retires_the_highest_names() -> None:
    a_fleet = ready_fleet(decode=3)
    a_fleet.scale("decode", 1)
    assert a_fleet.plan(0.0) == [Retire("decode-2", "i3", was_ready=True), Retire("decode-1", "i2", was_ready=True)]
    assert states(a_fleet) == {"decode-0": "ready", "decode-1": "draining", "decode-2": "draining"}


def test_scaling_down_retires_what_serves_nothing_first() -> None:
    a_fleet = ready_fleet(decode=3)
    a_fleet.ended("decode-0", "i1", "killed", now=1.0)
    a_fleet.scale("decode", 2)
    assert a_fleet.plan(1.0) == []
    assert states(a_fleet) == {"decode-1": "ready", "decode-2": "ready"}


def test_a_retired_worker_is_forgotten_when_it_ends() -> None:
    a_fleet = ready_fleet(decode=2)
    a_fleet.scale("decode", 1)
    a_fleet.plan(0.0)
    a_fleet.ended("decode-1", "i2", "stopped", now=1.0)
    assert states(a_fleet) == {"decode-0": "ready"}
    assert a_fleet.plan(1.0) == []


def test_scaling_up_while_a_worker_drains_starts_one_of_another_name() -> None:
    a_fleet = ready_fleet(decode=2)
    a_fleet.scale("decode", 1)
    a_fleet.plan(0.0)
    a_fleet.scale("decode", 2)
    assert [action.name for action in a_fleet.plan(0.0)] == ["decode-2"]


def test_a_worker_that_still_starts_is_stopped_without_a_drain() -> None:
    a_fleet = fleet(decode=1)
    a_fleet.plan(0.0)
    a_fleet.scale("decode", 0)
    assert a_fleet.plan(0.0) == [Retire("decode-0", "i1", was_ready=False)]
    a_fleet.ready("decode-0", "i1", 1.0)
    assert states(a_fleet) == {"decode-0": "draining"}


def test_a_drained_worker_has_another_started_in_its_place() -> None:
    a_fleet = ready_fleet(decode=1)
    assert a_fleet.drain("decode-0") == Retire("decode-0", "i1", was_ready=True)
    assert a_fleet.plan(0.0) == [Start("decode-1", "decode", "i2", 0)]


def test_a_change_of_role_and_a_wait_for_a_machine_are_no_restarts() -> None:
    a_fleet = ready_fleet(decode=2)
    a_fleet.set_role("decode-1", "prefill", 1)
    a_fleet.ended("decode-1", "i2", "left", now=5.0)
    assert a_fleet.plan(5.0) == [Start("decode-1", "prefill", "i3", 0, 2)]
    a_fleet.unplaced("decode-1", "i3", "no machine", now=5.0)
    assert a_fleet.plan(6.0) == [Start("decode-1", "prefill", "i4", 0, 2)]
    a_fleet.ended("decode-1", "i4", "killed", now=7.0)
    assert a_fleet.workers["decode-1"].num_restarts == 1


def test_draining_nobody_is_an_error() -> None:
    with pytest.raises(UnknownWorkerError):
        fleet().drain("decode-9")


def test_a_broken_worker_is_replaced_only_when_it_is_gone() -> None:
    a_fleet = ready_fleet(decode=1)
    assert a_fleet.broken("decode-0", "i1") == Retire("decode-0", "i1", was_ready=True)
    assert states(a_fleet) == {"decode-0": "draining"}
    assert a_fleet.plan(1.0) == []
    a_fleet.ended("decode-0", "i1", "no staging slot left", now=100.0)
    assert a_fleet.plan(100.0) == [Start("decode-0", "decode", "i2", 1)]


def test_a_broken_worker_that_is_scaled_away_does_not_come_back() -> None:
    a_fleet = ready_fleet(decode=1)
    a_fleet.broken("decode-0", "i1")
    a_fleet.scale("decode", 0)
    assert a_fleet.plan(1.0) == []
    a_fleet.ended("decode-0", "i1", "no staging slot left", now=2.0)
    assert states(a_fleet) == {}


def test_news_of_an_older_incarnation_is_ignored() -> None:
    a_fleet = ready_fleet(decode=1)
    a_fleet.ended("decode-0", "i1", "killed", now=100.0)
    a_fleet.plan(100.0)
    a_fleet.ready("decode-0", "i1", 101.0)
    a_fleet.ended("decode-0", "i1", "killed again", 101.0)
    assert a_fleet.broken("decode-0", "i1") is None
    assert a_fleet.workers["decode-0"].state is WorkerState.STARTING
    assert a_fleet.workers["decode-0"].last_error == "killed"


def test_adopted_workers_count_and_missing_ones_are_started() -> None:
    a_fleet = fleet(decode=2)
    a_fleet.adopt("decode-1", "decode", "old", num_restarts=4, draining=False, now=0.0)
    assert a_fleet.plan(0.0) == [Start("decode-0", "decode", "i1", 0)]
    assert a_fleet.workers["decode-1"].num_restarts == 4


def test_an_adopted_worker_that_drains_is_not_counted() -> None:
    a_fleet = fleet(decode=1)
    a_fleet.adopt("decode-0", "decode", "old", num_restarts=0, draining=True, now=0.0)
    assert [action.name for action in a_fleet.plan(0.0)] == ["decode-1"]
