"""The real model's text does not depend on how it is scheduled: any strategy, preempted or not, alone or in a crowd."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import Request, SamplingParams
from engine.scheduling import STRATEGIES, SchedulingConfig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NUM_TOKENS = 12
LENGTHS = (5, 60, 33, 90, 17, 40)
MAX_MODEL_LEN = 512
ROOMY = 200  # blocks
TIGHT = 8  # not enough for all of them: somebody is preempted


@pytest.fixture(scope="module")
def roomy(real_model: Path) -> Engine:
    return build_engine(real_model, EngineConfig(max_model_len=MAX_MODEL_LEN, num_blocks=ROOMY, threads=1))


@pytest.fixture(scope="module")
def texts(roomy: Engine) -> list[list[int]]:
    """Each request's tokens when nobody else is there."""
    return [run(roomy, [request])[0] for request in make_requests()]


def make_requests() -> list[Request]:
    """Greedy ones and seeded ones, of several priorities."""
    rng = random.Random(11)
    requests = []
    for n, length in enumerate(LENGTHS):
        sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.9 * (n % 2), top_p=0.9, seed=n)
        prompt = [rng.randrange(1000, 40_000) for _ in range(length)]
        requests.append(Request(f"r{n}", prompt, length, sampling, priority=n % 3, arrived_at=float(n)))
    return requests


def with_settings(engine: Engine, prefix_caching: bool = False, **fields: object) -> Engine:
    """The same model and memory under other settings, with an empty cache."""
    scheduling = SchedulingConfig.model_validate({"max_num_batched_tokens": MAX_MODEL_LEN + 32} | fields)
    config = engine.config.model_copy(update={"scheduling": scheduling, "enable_prefix_caching": prefix_caching})
    return Engine(config, engine.model, engine.runner, engine.cache)


def hold_back(engine: Engine, num_free: int) -> None:
    """Leaves the engine only so many blocks."""
    assert engine.pool.allocate(engine.pool.num_free - num_free) is not None


def run(engine: Engine, requests: list[Request]) -> list[list[int]]:
    """Their tokens. Each is told to the engine a step after the one before."""
    waiting = list(requests)
    while waiting or engine.requests:
        if waiting:
            engine.add(waiting.pop(0))
        engine.step()
    return [request.token_ids[request.num_prompt :] for request in requests]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_text_is_the_same_under_every_strategy(strategy: str, roomy: Engine, texts: list[list[int]]) -> None:
    assert run(with_settings(roomy, strategy=strategy), make_requests()) == texts


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_text_is_the_same_after_preemption(preemption: str, roomy: Engine, texts: list[list[int]]) -> None:
    engine = with_settings(roomy, preemption=preemption, decode_headroom_blocks=0)
    hold_back(engine, TIGHT)
    requests = make_requests()
    assert run(engine, requests) == texts
    assert engine.scheduler.swapping.space.num_free == engine.scheduler.swapping.space.num_blocks
    assert sum(request.num_preemptions for request in requests) > 0
    assert max(request.num_preemptions for request in requests) < 10


def test_text_is_the_same_when_the_prompt_is_known_already(roomy: Engine, texts: list[list[int]]) -> None:
    """Field report D03."""
    engine = with_settings(roomy, prefix_caching=True)
    run(engine, make_requests())
    again = [replace(request, request_id=f"{request.request_id}-again") for request in make_requests()]
    assert run(engine, again) == texts
    assert [request.num_cached for request in again] == [(length - 1) // 16 * 16 for length in LENGTHS]
