"""The sampler: log-probabilities of the raw logits, tokens of the processed ones, one failure for one request."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher
from torch import Tensor

from bench.fake_model import write_fake_model
from engine.fake_runner import EOS_TOKEN_ID
from engine.grammar import Grammars
from engine.request import Request, SamplingParams
from engine.sampled_token import SampledToken, SamplingFailure
from engine.sampler import Sampler

VOCAB_SIZE = 300
PLAIN = SamplingParams(max_tokens=100)


def logits_for(num_rows: int) -> Tensor:
    return 3 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def request(sampling: SamplingParams, generated: bytes = b"") -> Request:
    return Request("r", [1, 2, 3, *generated], 3, sampling)


def sampled(logits: Tensor, *requests: Request, grammars: Grammars | None = None) -> list[SampledToken]:
    answers = Sampler(grammars or Grammars(None)).sample(logits.clone(), requests)
    return [answer for answer in answers if isinstance(answer, SampledToken)]


def test_a_plain_request_gets_the_best_token_and_nothing_more() -> None:
    logits = logits_for(4)
    tokens = sampled(logits, *[request(PLAIN)] * 4)
    assert tokens == [SampledToken(token_id) for token_id in logits.argmax(-1).tolist()]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logprobs_are_of_the_raw_logits_whatever_else_is_asked_for(temperature: float) -> None:
    logits = logits_for(1)
    asked = replace(
        PLAIN,
        temperature=temperature,
        num_logprobs=5,
        logit_bias=((17, 90.0),),
        repetition_penalty=1.5,
        stop_token_ids=frozenset({int(logits.argmax())}),
        min_tokens=9,
    )
    (token,) = sampled(logits, request(asked, b"abc"))
    raw = logits[0].log_softmax(-1)
    best = raw.topk(5)
    assert token.token_id == 17
    assert token.logprobs is not None
    assert token.logprobs.logprob == pytest.approx(float(raw[17]))
    assert token.logprobs.top_ids == tuple(best.indices.tolist())
    assert token.logprobs.top_logprobs == pytest.approx(best.values.tolist())


def test_each_request_gets_as_many_logprobs_as_it_asks_for() -> None:
    logits = logits_for(5)
    counts = [None, 0, 1, 20, 3]
    tokens = sampled(logits, *[request(replace(PLAIN, num_logprobs=count)) for count in counts])
    told = [None if token.logprobs is None else len(token.logprobs.top_ids) for token in tokens]
    assert told == counts
    for row, token in enumerate(tokens[1:], start=1):
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(float(logits[row].log_softmax(-1).amax()))


def test_logprobs_are_finite_where_the_model_rules_tokens_out() -> None:
    logits = logits_for(2)
    logits[:, 10:] = -torch.inf
    tokens = sampled(logits, *[request(replace(PLAIN, num_logprobs=20, logit_bias=((200, 100.0),)))] * 2)
    for token in tokens:
        assert token.logprobs is not None
        assert all(math.isfinite(value) for value in (token.logprobs.logprob, *token.logprobs.top_logprobs))


def test_no_more_logprobs_are_told_than_there_are_tokens() -> None:
    (token,) = sampled(logits_for(1)[:, :7], request(replace(PLAIN, num_logprobs=20)))
    assert token.logprobs is not None
    assert sorted(token.logprobs.top_ids) == list(range(7))


def test_a_grammar_chooses_among_what_it_allows_and_fails_alone(tmp_path: Path) -> None:
    grammars = Grammars(write_fake_model(tmp_path), {EOS_TOKEN_ID})
    sampling = replace(
        PLAIN,
        grammar=LLMatcher.grammar_from_regex("[a-f]{3}"),
        stop_token_ids=frozenset({EOS_TOKEN_ID}),
        logit_bias=((ord("z"), 100.0), (ord("c"), -100.0)),
    )
    right, wrong, complete = request(sampling), request(sampling, b"xyz"), request(sampling, b"abc")
    for started in (right, wrong, complete):
        grammars.admit(started)
    logits = logits_for(5)
    answers = Sampler(grammars).sample(
        logits.clone(), [request(PLAIN), right, wrong, complete, request(replace(PLAIN, grammar="unknown"))]
    )
    assert answers[0] == SampledToken(int(logits[0].argmax()))
    assert answers[1] == SampledToken(max(b"abdef", key=lambda token_id: float(logits[1, token_id])))
    assert isinstance(answers[2], SamplingFailure)
    assert "the grammar cannot go on" in answers[2].message
    assert answers[3] == SampledToken(EOS_TOKEN_ID)
    assert answers[4] == SamplingFailure("the grammar was not compiled")
