"""Sampling on a CUDA device chooses, and tells, what it does on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.grammar import Grammars
from engine.request import Request, SamplingParams
from engine.sampled_token import SampledToken
from engine.sampler import Sampler

VOCAB_SIZE = 49152
GREEDY = SamplingParams(max_tokens=100, num_logprobs=5, stop_token_ids=frozenset({2}))
WAYS = [
    GREEDY,
    replace(GREEDY, temperature=1.0),
    replace(GREEDY, temperature=0.8, top_p=0.9, top_k=50, min_p=0.01),
    replace(GREEDY, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2),
    replace(GREEDY, temperature=1.0, min_tokens=50, logit_bias=((2, 50.0), (77, 5.0))),
]


def sampled(device: str, requests: list[Request]) -> list[SampledToken]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(requests), VOCAB_SIZE, generator=generator)
    answers = Sampler(Grammars(None)).sample(logits.to(device), requests)
    return [answer for answer in answers if isinstance(answer, SampledToken)]


def test_tokens_and_logprobs_on_cuda_are_those_on_cpu() -> None:
    requests = [Request(f"r{n}", list(range(n, n + 40)), 20, replace(WAYS[n % 5], seed=n)) for n in range(32)]
    on_cpu, on_cuda = sampled("cpu", requests), sampled("cuda", requests)
    assert [token.token_id for token in on_cuda] == [token.token_id for token in on_cpu]
    for ours, theirs in zip(on_cuda, on_cpu, strict=True):
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        assert ours.logprobs.top_ids == theirs.logprobs.top_ids
        assert ours.logprobs.top_logprobs == pytest.approx(theirs.logprobs.top_logprobs, abs=1e-4)
