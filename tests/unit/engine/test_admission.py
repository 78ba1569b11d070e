"""Sampling values that could never be right, or would break a batch, are refused by the name of their field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import RequestInvalid
from engine.fake_runner import VOCAB_SIZE
from engine.request import Request, SamplingParams
from tests.unit.engine.conftest import make_engine, run_to_end

NAN, INF = float("nan"), float("inf")


def add(engine: Engine, name: str = "r", **sampling: Any) -> None:
    engine.add(Request(name, [1, 2, 3], 3, replace(SamplingParams(max_tokens=4), **sampling)))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, NAN, INF, -INF]),
        ("top_p", [-0.1, 1.1, NAN, INF]),
        ("top_k", [-1]),
        ("min_p", [-0.1, 1.1, NAN, INF]),
        ("presence_penalty", [-2.1, 2.1, NAN, INF]),
        ("frequency_penalty", [-2.1, 2.1, NAN, -INF]),
        ("repetition_penalty", [0.0, -1.0, 2.1, NAN, INF]),
        ("num_logprobs", [-1, 21]),
        ("min_tokens", [-1, 5]),
        ("max_tokens", [0]),
        ("logit_bias", [((3, 100.5),), ((3, NAN),), ((3, -INF),), ((VOCAB_SIZE, 1.0),), ((-1, 1.0),)]),
        ("stop_token_ids", [frozenset({VOCAB_SIZE}), frozenset({-1})]),
        ("grammar", ["no grammar"]),
    ],
)
def test_what_is_out_of_range_is_refused_and_the_engine_goes_on(field: str, values: list[Any]) -> None:
    engine = make_engine()
    for value in values:
        with pytest.raises(RequestInvalid, match=f"^{field}"):
            add(engine, **{field: value})
    assert not engine.requests
    add(engine)
    assert len(run_to_end(engine)["r"]) == 4


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-8},
        {"temperature": 1e30},
        {"top_p": 0.0, "temperature": 1.0},
        {"top_k": 2**31 - 1},
        {"min_p": 1.0, "temperature": 1.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 1e-8},
        {"logit_bias": tuple((token_id, 100.0) for token_id in range(VOCAB_SIZE))},
        {"num_logprobs": 20},
        {"seed": 2**64 - 1},
        {"min_tokens": 4, "stop_token_ids": frozenset(range(VOCAB_SIZE - 1))},
    ],
)
def test_the_bounds_themselves_are_taken(sampling: dict[str, Any]) -> None:
    engine = make_engine()
    add(engine, **sampling)
    assert all(0 <= token_id < VOCAB_SIZE for token_id in run_to_end(engine)["r"])


def test_what_cannot_be_had_together_is_refused() -> None:
    engine = make_engine()
    with pytest.raises(RequestInvalid, match=r"^min_tokens cannot be had with a grammar"):
        add(engine, min_tokens=2, grammar="{}")
    with pytest.raises(RequestInvalid, match=r"^min_tokens cannot be reached"):
        add(engine, min_tokens=2, stop_token_ids=frozenset(range(VOCAB_SIZE)))
