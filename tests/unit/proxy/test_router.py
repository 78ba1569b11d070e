"""Routing policies and what they cost, by table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from proxy.routing.cost import Candidate, CostWeights, LocalReason, local_reason, total_cost
from proxy.routing.policy import (
    POLICIES,
    Question,
    at_random,
    least_loaded,
    power_of_two,
    prefix_aware,
    round_robin,
    session_affinity,
)
from proxy.routing.worker_view import WorkerView

WEIGHTS = CostWeights()
ASKED = Question(num_tokens=1000, turn=0, draw=0)


def view(queued: int = 0, requests: int = 0, cached: int = 0, worker: str = "w") -> WorkerView:
    return WorkerView(worker, num_waiting=0, num_requests=requests, num_queued_tokens=queued, num_cached_tokens=cached)


def prefill(queued: int = 0, requests: int = 0, cached: int = 0, worker: str = "w") -> Candidate:
    return Candidate(view(queued, requests, cached, worker), None)


def pair(prefill: WorkerView, decode: WorkerView, *, is_remote: bool = False) -> Candidate:
    return Candidate(prefill, decode, is_remote)


def local(decode: WorkerView) -> Candidate:
    return Candidate(None, decode)


def test_round_robin_takes_turns_whatever_the_load() -> None:
    candidates = [prefill(queued=9000), prefill(), prefill()]
    assert [round_robin(candidates, replace(ASKED, turn=turn)) for turn in range(5)] == [0, 1, 2, 0, 1]


def test_a_random_choice_follows_the_draw_and_reaches_all() -> None:
    candidates = [prefill(queued=9000), prefill(), prefill()]
    assert {at_random(candidates, replace(ASKED, draw=draw)) for draw in (0, 1, 2, 2**64 - 1)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([prefill(queued=500, requests=1), prefill(queued=20, requests=3)], 1),  # few tokens before a prompt
        ([prefill(queued=100, requests=2), prefill(queued=100, requests=1)], 1),
        ([pair(view(), view(requests=5)), pair(view(), view(requests=1))], 1),  # few streams beside a stream
        ([pair(view(queued=4000), view()), pair(view(), view(requests=1))], 1),
        ([local(view(queued=2000, requests=1)), local(view(requests=2))], 1),
        ([prefill(cached=900, queued=10), prefill()], 1),  # whatever is cached
    ],
)
def test_least_loaded_weighs_what_waits_there(candidates: list[Candidate], expected: int) -> None:
    assert least_loaded(candidates, ASKED) == expected


def test_equally_loaded_workers_take_turns() -> None:
    candidates = [prefill(), prefill(), prefill(queued=700)]
    for policy in (least_loaded, prefix_aware):
        assert {policy(candidates, replace(ASKED, turn=turn)) for turn in range(3)} == {0, 1}


def test_power_of_two_takes_the_less_loaded_of_two_different_ones() -> None:
    candidates = [prefill(queued=100 * n) for n in range(4)]
    chosen = Counter(power_of_two(candidates, replace(ASKED, draw=draw)) for draw in range(12))
    assert chosen == {0: 6, 1: 4, 2: 2}  # of all ordered pairs of different ones, the lower of the two
    assert power_of_two(candidates[:1], replace(ASKED, draw=7)) == 0


def test_a_session_stays_where_it_was_while_others_come_and_go() -> None:
    names = [f"worker-{n}" for n in range(8)]
    sessions = [bytes([n]) for n in range(64)]

    def home(session: bytes, names: list[str]) -> str:
        candidates = [prefill(queued=n, worker=name) for n, name in enumerate(names)]
        return names[session_affinity(candidates, replace(ASKED, session=session))]

    before = {session: home(session, names) for session in sessions}
    after = {session: home(session, names[1:]) for session in sessions}
    assert {s for s in sessions if before[s] != after[s]} == {s for s in sessions if before[s] == names[0]}
    assert len(set(before.values())) == 8


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([prefill(cached=800), prefill()], 0),  # what is cached need not be computed
        ([prefill(cached=800, queued=4500), prefill()], 1),  # but not at any price
        ([prefill(cached=800, queued=3500), prefill()], 0),
        ([pair(view(), view()), pair(view(), view(cached=900))], 1),  # less to move
        ([pair(view(), view(), is_remote=True), pair(view(), view())], 1),
        ([pair(view(cached=512), view(), is_remote=True), pair(view(), view())], 0),
        ([pair(view(), view(requests=9)), pair(view(queued=100), view())], 1),
    ],
)
def test_prefix_aware_weighs_what_is_cached_against_what_waits(candidates: list[Candidate], expected: int) -> None:
    assert prefix_aware(candidates, ASKED) == expected


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_takes_the_only_candidate(name: str) -> None:
    assert POLICIES[name]([pair(view(), view())], replace(ASKED, turn=5, draw=2**63)) == 0


@pytest.mark.parametrize(
    ("num_tokens", "on_prefill", "on_decode", "expected"),
    [
        (16, view(), view(), LocalReason.SHORT_PROMPT),
        (17, view(), view(), None),
        (1000, view(), view(), None),
        (1000, view(), view(cached=992), LocalReason.CACHED_ON_DECODE),
        (1000, view(cached=992), view(cached=992), LocalReason.CACHED_ON_DECODE),
        (1000, view(cached=992), view(cached=800), None),
        (1000, view(), view(cached=800), LocalReason.CACHED_ON_DECODE),  # the prefill worker lacks much more
        (1000, view(queued=2000), view(), None),
        (1000, view(queued=4000), view(), LocalReason.PREFILL_OVERLOADED),
        (1000, view(queued=4000), view(queued=2000), None),  # it would wait there, too
        (16, view(), view(queued=100), None),
    ],
)
def test_a_decode_worker_computes_a_prompt_where_that_costs_less(
    num_tokens: int, on_prefill: WorkerView, on_decode: WorkerView, expected: LocalReason | None
) -> None:
    assert local_reason(pair(on_prefill, on_decode), local(on_decode), num_tokens, WEIGHTS) == expected


def test_streams_beside_it_count_the_same_whoever_computes_the_prompt() -> None:
    busy, idle = view(requests=7), view()
    for num_tokens in (10, 1000):
        more = total_cost(pair(idle, busy), num_tokens, WEIGHTS) - total_cost(pair(idle, idle), num_tokens, WEIGHTS)
        assert more == total_cost(local(busy), num_tokens, WEIGHTS) - total_cost(local(idle), num_tokens, WEIGHTS)
        assert more == 7 * WEIGHTS.stream
