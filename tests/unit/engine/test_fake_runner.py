"""The fake model honours what changes a real model's choice, so that whole clusters can be tested on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLMatcher

from bench.fake_model import write_fake_model
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import RequestInvalid
from engine.fake_runner import EOS_TOKEN_ID, FakeRunner
from engine.request import Request, SamplingParams
from engine.scheduler import TokenOutput
from tests.unit.engine.conftest import make_engine, run_to_end

PROMPT = [9, 8, 7]
PLAIN = SamplingParams(max_tokens=8)


def request(sampling: SamplingParams) -> Request:
    return Request("r", list(PROMPT), len(PROMPT), sampling)


def outputs(engine: Engine, sampling: SamplingParams) -> list[TokenOutput]:
    engine.add(request(sampling))
    told: list[TokenOutput] = []
    while (result := engine.step()).num_tokens:
        told += result.tokens
    return told


@pytest.mark.parametrize(
    "sampling",
    [
        PLAIN,
        replace(PLAIN, temperature=1.0, seed=5),
        replace(PLAIN, frequency_penalty=2.0, repetition_penalty=1.5),
        replace(PLAIN, logit_bias=((ord("Q"), 30.0),)),
    ],
)
def test_expected_is_what_an_engine_generates(sampling: SamplingParams) -> None:
    engine = make_engine()
    engine.add(request(sampling))
    assert run_to_end(engine) == {"r": FakeRunner.expected(PROMPT, 8, sampling)}


def test_a_bias_forces_a_token_and_min_tokens_puts_off_a_stop() -> None:
    forced = FakeRunner.expected(PROMPT, 3, replace(PLAIN, logit_bias=((ord("Q"), 30.0),)))
    assert forced == list(b"QQQ")
    first = FakeRunner.expected(PROMPT, 1)[0]
    put_off = replace(PLAIN, stop_token_ids=frozenset({first}), min_tokens=1)
    assert [t.finish_reason for t in outputs(make_engine(), replace(put_off, min_tokens=0))] == ["stop"]
    assert outputs(make_engine(), put_off)[0].token_id != first


def test_logprobs_are_the_same_for_every_best_token() -> None:
    told = [output.logprobs for output in outputs(make_engine(), replace(PLAIN, num_logprobs=2))]
    assert all(logprobs is not None and len(logprobs.top_ids) == 2 for logprobs in told)
    assert [logprobs.logprob for logprobs in told if logprobs] == pytest.approx([-1.5073] * 8, abs=1e-3)


def test_a_grammar_is_followed_by_bytes_where_the_folder_has_a_tokenizer(tmp_path: Path) -> None:
    engine = build_engine(write_fake_model(tmp_path), EngineConfig(num_blocks=16))
    grammar = LLMatcher.grammar_from_regex("[0-9]{3}:[a-z]{2}")
    told = outputs(engine, replace(PLAIN, grammar=grammar, stop_token_ids=frozenset({EOS_TOKEN_ID})))
    text = bytes(output.token_id for output in told[:-1]).decode()
    assert (text[:3].isdigit(), text[3], text[4:].isalpha(), len(text)) == (True, ":", True, 6)
    assert (told[-1].token_id, told[-1].finish_reason) == (EOS_TOKEN_ID, "stop")
    with pytest.raises(RequestInvalid, match=r"^grammar is not supported: .* no tokenizer\.json"):
        make_engine().add(request(replace(PLAIN, grammar=grammar)))
