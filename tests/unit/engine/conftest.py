"""Engines over the fake runner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from engine.engine import Engine
from engine.fake_runner import FakeModel, FakeRunner
from engine.kv_cache import KVCache
from engine.request import Request, RequestKind, SamplingParams
from tests.engine_config import engine_config


def make_engine(**fields: object) -> Engine:
    config = engine_config(**({"block_size": 4, "num_blocks": 32, "prefill_chunk_size": 8} | fields))
    model = FakeModel()
    cache = KVCache(model.layout(config.block_size), config.num_blocks)
    return Engine(config, model.info(), FakeRunner(cache, model), cache)


class RequestFactory:
    """Makes requests whose arrival order is their creation order."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def __call__(
        self,
        prompt: Sequence[int],
        max_tokens: int = 4,
        kind: RequestKind = RequestKind.GENERATE,
        priority: int = 0,
        cache_salt: str = "",
        awaits_kv: bool = False,
    ) -> Request:
        number = next(self._numbers)
        sampling = SamplingParams(max_tokens=max_tokens)
        return Request(
            f"r{number}",
            list(prompt),
            len(prompt),
            sampling,
            kind,
            priority,
            cache_salt,
            arrived_at=float(number),
            awaits_kv=awaits_kv,
        )


def run_to_end(engine: Engine, max_steps: int = 500) -> dict[str, list[int]]:
    """Steps until nothing moves; each request's tokens from here on. The books are checked after each step."""
    tokens: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    for _ in range(max_steps):
        result = engine.step()
        engine.check_integrity()
        for output in result.tokens:
            known = tokens.setdefault(output.request_id, [])
            assert output.index == first.setdefault(output.request_id, output.index) + len(known)
            tokens[output.request_id].append(output.token_id)
        if not result.num_tokens:
            return tokens
    raise AssertionError(f"still running after {max_steps} steps")


@pytest.fixture
def new_request() -> RequestFactory:
    return RequestFactory()


@pytest.fixture
def new_engine() -> Callable[..., Engine]:
    return make_engine
