"""What the workers are told of a client's sampling values."""

from __future__ import annotations

import math

import pytest

from proxy.errors import ApiError
from proxy.request.sampling import Sampling, check, for_choice, resolve
from rpc import worker_pb2

EOS = frozenset([256])


def told(**given: object) -> worker_pb2.SamplingParams:
    sampling = Sampling(**given)  # type: ignore[arg-type]
    check(sampling, vocab_size=257)
    return resolve(sampling, EOS, room=100)


def test_the_defaults_are_those_of_openai_and_the_context_is_the_limit() -> None:
    params = told()
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (1.0, 1.0, 0, 100)
    assert list(params.stop_token_ids) == [256]


@pytest.mark.parametrize(("temperature", "sent"), [(0, 0), (1e-8, 0), (1e-4, 1e-4), (2, 2)])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float, sent: float) -> None:
    assert told(temperature=temperature).temperature == pytest.approx(sent)


@pytest.mark.parametrize("top_p", [0, 1e-8, 1e-46])
def test_a_top_p_of_nothing_leaves_one_token_and_not_all(top_p: float) -> None:
    params = told(top_p=top_p)
    assert (params.top_k, params.top_p) == (1, 1.0)


@pytest.mark.parametrize(("top_k", "sent"), [(-1, 0), (0, 0), (5, 5)])
def test_no_top_k_leaves_every_token(top_k: int, sent: int) -> None:
    assert told(top_k=top_k).top_k == sent


def test_a_missing_seed_is_drawn_and_a_given_one_fits_64_bits() -> None:
    assert told().seed != told().seed
    assert told(seed=0).seed == 0
    assert told(seed=-1).seed == 2**64 - 1


def test_end_of_text_is_a_stop_token_unless_it_is_to_be_ignored() -> None:
    assert list(told(stop_token_ids=(7,)).stop_token_ids) == [7, 256]
    assert list(told(stop_token_ids=(7,), ignore_eos=True).stop_token_ids) == [7]


def test_a_limit_beyond_the_context_is_refused_with_both_numbers() -> None:
    assert told(max_tokens=100).max_tokens == 100
    with pytest.raises(ApiError, match=r"max_tokens: 101 do not fit.* 100 more"):
        told(max_tokens=101)


def test_every_value_reaches_the_worker_under_its_own_name() -> None:
    params = told(
        min_p=0.25,
        presence_penalty=-1.5,
        frequency_penalty=0.5,
        repetition_penalty=1.25,
        logit_bias=((5, -100.0), (6, 2.5)),
        min_tokens=3,
        num_logprobs=0,
        max_tokens=9,
    )
    assert (params.min_p, params.presence_penalty, params.frequency_penalty) == (0.25, -1.5, 0.5)
    assert (params.repetition_penalty, params.min_tokens, params.max_tokens) == (1.25, 3, 9)
    assert dict(params.logit_bias) == {5: -100.0, 6: 2.5}
    assert params.HasField("num_logprobs")


def test_nothing_asked_for_changes_nothing() -> None:
    params = told()
    assert params.repetition_penalty == 1.0  # 0 would divide by nothing
    assert (params.min_p, params.presence_penalty, params.frequency_penalty, params.min_tokens) == (0, 0, 0, 0)
    assert not params.logit_bias
    assert not params.HasField("num_logprobs")


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"min_p": -0.1}, "min_p: must be from 0 to 1, not -0.1"),
        ({"min_p": 1.1}, "min_p: must be from 0 to 1"),
        ({"presence_penalty": 2.1}, "presence_penalty: must be from -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty: must be from -2 to 2"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: must be from 0.01 to 2, not 0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty: must be from 0.01 to 2"),
        ({"repetition_penalty": 2.1}, "repetition_penalty: must be from 0.01 to 2"),
        ({"logit_bias": ((257, 1.0),)}, "logit_bias: 257 is not in the vocabulary of 257 tokens"),
        ({"logit_bias": ((5, 100.5),)}, "logit_bias: must be from -100 to 100, not 100.5"),
        ({"logit_bias": tuple((i % 257, 1.0) for i in range(301))}, "logit_bias: at most 300 tokens, not 301"),
        ({"min_tokens": -1}, "min_tokens: must be at least 0"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens: 6 are more than max_tokens, 5"),
        ({"min_tokens": 101}, "min_tokens: 101 do not fit.* 100 more"),
        ({"num_logprobs": 21}, "logprobs: must be from 0 to 20"),
        ({"num_logprobs": -1}, "logprobs: must be from 0 to 20"),
        ({"n": 0}, "n: must be from 1 to 128, not 0"),
        ({"n": 129}, "n: must be from 1 to 128, not 129"),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_its_name_and_its_limit(given: dict[str, object], limit: str) -> None:
    with pytest.raises(ApiError, match=limit):
        told(**given)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
def test_what_is_no_number_is_refused_whichever_way_it_came(name: str, value: float) -> None:
    with pytest.raises(ApiError, match=f"{name}: must be from"):
        told(**{name: value})
    with pytest.raises(ApiError, match="logit_bias: must be from"):
        told(logit_bias=((5, value),))


def test_the_limits_themselves_are_allowed_also_as_float32() -> None:
    told(min_p=1.0, presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=2.0, num_logprobs=20, n=128)
    told(repetition_penalty=0.009999999776482582, logit_bias=((0, -100.0), (256, 100.0)), min_tokens=100)


def test_prompts_and_choices_together_have_a_limit() -> None:
    check(Sampling(n=64), 257, num_prompts=2)
    with pytest.raises(ApiError, match="n: 3 prompts with n = 64 are more than 128 choices"):
        check(Sampling(n=64), 257, num_prompts=3)


def test_each_choice_has_its_own_seed_and_the_first_has_the_requests() -> None:
    params = told(seed=7, logit_bias=((5, 1.0),))
    seeds = [for_choice(params, number).seed for number in range(128)]
    assert seeds[0] == params.seed == 7
    assert len(set(seeds)) == 128
    assert seeds == [for_choice(told(seed=7), number).seed for number in range(128)]
    assert dict(for_choice(params, 1).logit_bias) == {5: 1.0}
