"""Our processed logits are those of transformers' processors, and of vLLM's formula where transformers has none."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.choice import choose_tokens, distribution
from engine.grammar import Grammars
from engine.logit_processors import LogitProcessors
from engine.request import Request, SamplingParams

VOCAB_SIZE = 500
NUM_PROMPT = 40
PLAIN = SamplingParams(max_tokens=100)


def logits_for(num_rows: int, seed: int = 0) -> Tensor:
    return 4 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def request(sampling: SamplingParams, seed: int = 0, num_generated: int = 30) -> Request:
    token_ids = random.Random(seed).choices(range(VOCAB_SIZE), k=NUM_PROMPT + num_generated)
    return Request(f"r{seed}", token_ids, NUM_PROMPT, sampling)


def processed(logits: Tensor, *requests: Request) -> Tensor:
    changed = logits.clone()
    assert LogitProcessors(Grammars(None)).apply(changed, requests) == {}
    return changed


def transformers_processed(logits: Tensor, token_ids: list[int], *processors: object) -> Tensor:
    changed: Tensor = LogitsProcessorList(processors)(torch.tensor([token_ids]), logits.clone())
    return changed


@pytest.mark.parametrize("penalty", [0.5, 0.9, 1.1, 2.0])
def test_the_repetition_penalty_is_transformers_over_prompt_and_completion(penalty: float) -> None:
    logits = logits_for(1)
    ours = request(replace(PLAIN, repetition_penalty=penalty))
    theirs = transformers_processed(logits, ours.token_ids, RepetitionPenaltyLogitsProcessor(penalty))
    torch.testing.assert_close(processed(logits, ours), theirs)


def test_presence_and_frequency_are_openais_formula_over_the_completion_alone() -> None:
    logits = logits_for(1)
    ours = request(replace(PLAIN, presence_penalty=0.7, frequency_penalty=-0.3), num_generated=400)
    expected = logits.clone()
    for token_id, times in Counter(ours.token_ids[NUM_PROMPT:]).items():
        expected[0, token_id] -= 0.7 - 0.3 * times
    torch.testing.assert_close(processed(logits, ours), expected)


def test_a_logit_bias_is_transformers_and_a_great_one_forces_or_bans_a_token() -> None:
    logits = logits_for(1)
    bias = ((3, 2.5), (77, -4.0), (499, 0.5))
    theirs = transformers_processed(logits, [1], SequenceBiasLogitsProcessor([[[i], b] for i, b in bias]))
    torch.testing.assert_close(processed(logits, request(replace(PLAIN, logit_bias=bias))), theirs)
    best = int(logits.argmax())
    assert int(processed(logits, request(replace(PLAIN, logit_bias=((123, 100.0),)))).argmax()) == 123
    assert int(processed(logits, request(replace(PLAIN, logit_bias=((best, -100.0),)))).argmax()) != best


@pytest.mark.parametrize("num_generated", [0, 4, 5, 6])
def test_min_tokens_is_transformers(num_generated: int) -> None:
    logits = logits_for(1)
    ours = request(replace(PLAIN, min_tokens=5, stop_token_ids=frozenset({9, 400})), num_generated=num_generated)
    processor = MinNewTokensLengthLogitsProcessor(NUM_PROMPT, 5, [9, 400])
    assert torch.equal(processed(logits, ours), transformers_processed(logits, ours.token_ids, processor))


@pytest.mark.parametrize(
    "how",
    [
        {"min_p": 0.05},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"min_p": 0.02, "temperature": 0.6, "top_p": 0.9},
        {"min_p": 0.01, "temperature": 1.5, "top_k": 20, "top_p": 0.7},
        {"temperature": 0.8, "top_k": 7, "top_p": 0.95},
    ],
)
def test_a_draw_is_from_transformers_distribution(how: dict[str, float]) -> None:
    logits = logits_for(8)
    params = SamplingParams(max_tokens=1, **({"temperature": 1.0} | how))  # type: ignore[arg-type]
    warpers: list[object] = [TemperatureLogitsWarper(params.temperature)]
    warpers += [MinPLogitsWarper(params.min_p)] if params.min_p else []
    warpers += [TopKLogitsWarper(params.top_k)] if params.top_k else []
    warpers += [TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    theirs = LogitsProcessorList(warpers)(torch.zeros(8, 1, dtype=torch.long), logits.clone()).softmax(-1)
    ours = distribution(logits, [params] * 8)
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours / ours.sum(-1, keepdim=True), theirs)


def everything(seed: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=100,
        temperature=0.9,
        top_p=0.9,
        top_k=50,
        seed=seed,
        min_p=0.02,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        repetition_penalty=1.2,
        logit_bias=((5, 3.0), (6, -3.0)),
        min_tokens=60,
        stop_token_ids=frozenset({7, 8}),
    )


def test_all_together_are_applied_in_vllms_order() -> None:
    logits = logits_for(1)
    ours = request(everything(0))
    expected = transformers_processed(
        logits,
        ours.token_ids,
        MinNewTokensLengthLogitsProcessor(NUM_PROMPT, 60, [7, 8]),
        SequenceBiasLogitsProcessor([[[5], 3.0], [[6], -3.0]]),
        RepetitionPenaltyLogitsProcessor(1.2),
    )
    for token_id, times in Counter(ours.token_ids[NUM_PROMPT:]).items():
        expected[0, token_id] -= 0.4 + 0.2 * times
    torch.testing.assert_close(processed(logits, ours), expected)


def test_a_batch_is_processed_as_each_row_alone_and_rows_that_ask_for_nothing_are_not_touched() -> None:
    logits = logits_for(12)
    requests = [request(everything(i) if i % 3 else PLAIN, seed=i, num_generated=3 * i) for i in range(12)]
    together = processed(logits, *requests)
    for i, alone in enumerate(requests):
        assert torch.equal(together[i : i + 1], processed(logits[i : i + 1], alone))
    assert torch.equal(together[::3], logits[::3])


def test_penalties_follow_a_request_token_by_token_and_count_what_came_with_it() -> None:
    processors = LogitProcessors(Grammars(None))
    growing = request(everything(1), num_generated=0)
    for token_id in random.Random(3).choices(range(20), k=30):
        logits = logits_for(1, seed=token_id)
        followed, anew = logits.clone(), processed(logits, replace(growing))
        processors.apply(followed, [growing])
        assert torch.equal(followed, anew)
        growing.token_ids.append(token_id)


def test_a_token_that_was_taken_back_is_not_counted() -> None:
    processors = LogitProcessors(Grammars(None))
    preempted = request(everything(1), num_generated=4)
    processors.apply(logits_for(1), [preempted])
    preempted.token_ids[-1] = (preempted.token_ids[-1] + 1) % VOCAB_SIZE
    followed = logits_for(1)
    processors.apply(followed, [preempted])
    assert torch.equal(followed, processed(logits_for(1), replace(preempted)))


EXTREMES = [
    replace(PLAIN, logit_bias=tuple((i, -torch.inf) for i in range(VOCAB_SIZE))),
    replace(PLAIN, logit_bias=((3, torch.inf), (4, torch.inf), (5, torch.nan))),
    replace(PLAIN, logit_bias=tuple((i, 1e38) for i in range(VOCAB_SIZE))),
    replace(PLAIN, repetition_penalty=1e-38, presence_penalty=2.0),
    replace(PLAIN, repetition_penalty=1e38, frequency_penalty=1e38),
    replace(PLAIN, presence_penalty=-torch.inf, frequency_penalty=torch.inf),
    replace(PLAIN, min_tokens=90, stop_token_ids=frozenset(range(VOCAB_SIZE))),
]


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-5, 1.0, 1e30])
@pytest.mark.parametrize("sampling", EXTREMES)
def test_whatever_is_asked_for_the_token_is_of_the_vocabulary(sampling: SamplingParams, temperature: float) -> None:
    drawn = [replace(sampling, temperature=temperature, top_p=top_p, min_p=0.1) for top_p in (0.0, 0.5, 1.0)]
    requests = [request(params, seed=i) for i, params in enumerate(drawn)]
    logits = processed(logits_for(3), *requests)
    assert not logits.isnan().any()
    assert all(0 <= token < VOCAB_SIZE for token in choose_tokens(logits, drawn, [1, 2, 3]))
