"""The first requests of a public trace through the proxy's policies: hits like one cache, and an even load.

Field report D20.
"""

from __future__ import annotations

import pytest

from bench.replay import Replay, Result, Setting, shared_hit_rate
from bench.routing import COMPARED
from bench.trace import TracedRequest, read_trace

SETTING = Setting(num_workers=4, cache_tokens=1_000_000, tokens_per_s=12_500)


@pytest.fixture(scope="module")
def requests() -> list[TracedRequest]:
    return read_trace(800)


@pytest.fixture(scope="module")
def shared(requests: list[TracedRequest]) -> float:
    return shared_hit_rate(requests, SETTING)


def replay(name: str, requests: list[TracedRequest]) -> Result:
    return Replay(COMPARED[name], SETTING).run(requests)


def test_prefix_aware_routing_hits_like_one_shared_cache_and_keeps_the_balance(
    requests: list[TracedRequest], shared: float
) -> None:
    result = replay("prefix_aware", requests)
    assert result.hit_rate >= 0.95 * shared
    assert result.token_imbalance <= 1.15


def test_round_robin_keeps_the_balance_and_misses_half(requests: list[TracedRequest], shared: float) -> None:
    result = replay("round_robin", requests)
    assert result.hit_rate < 0.6 * shared
    assert result.request_imbalance == 1.0


def test_the_longest_prefix_alone_sends_everything_to_one_worker(requests: list[TracedRequest]) -> None:
    assert replay("longest prefix only", requests).request_imbalance == SETTING.num_workers
