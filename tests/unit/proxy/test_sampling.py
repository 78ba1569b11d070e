"""What the workers are told of a client's sampling values."""

from __future__ import annotations

import pytest

from proxy.errors import ApiError
from proxy.sampling import Sampling, check, resolve
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
