"""Our decoder and transformers' agree, in every architecture and however the work is cut."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention import torch_attention
from engine.batch import Batch, LayerWatch, Work
from engine.config import EngineConfig
from engine.sampled_token import SampledToken
from engine.torch_runner import TorchRunner, load_torch_runner
from tests.unit.engine_model.tiny_models import (
    TINY_MODELS,
    VOCAB_SIZE,
    load_runner,
    logits_of,
    make_request,
    save_tiny,
)


def tokens(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=n)


def scattered(n: int, seed: int = 0, among: int = 256) -> list[int]:
    return random.Random(seed).sample(range(among), n)


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def assert_close(ours: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(ours, reference, atol=2e-4, rtol=2e-4)
    assert torch.equal(ours.argmax(-1), reference.argmax(-1))


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_prompt_gives_transformers_logits_whole_in_chunks_and_token_by_token(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path)
    runner = load_runner(tmp_path)
    request = make_request(tokens(150), scattered(38))
    reference = reference_logits(model, request.token_ids)

    assert_close(logits_of(runner, [Work(request, 0, 150, True)]), reference)

    request.blocks = scattered(38, seed=1)
    cuts = [0, 1, 7, 8, 40, 137, *range(138, 151)]
    pieces = [logits_of(runner, [Work(request, a, b - a, True)]) for a, b in itertools.pairwise(cuts)]
    assert_close(torch.cat(pieces), reference)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_sequences_of_one_batch_do_not_see_each_other(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path)
    runner = load_runner(tmp_path)
    blocks = scattered(60)
    decoding = make_request(tokens(33, seed=1), blocks[:9])
    chunked = make_request(tokens(70, seed=2), blocks[9:27])
    fresh = make_request(tokens(5, seed=3), blocks[27:29])
    logits_of(runner, [Work(decoding, 0, 32, False), Work(chunked, 0, 20, False)])

    mixed = logits_of(runner, [Work(decoding, 32, 1, True), Work(chunked, 20, 50, True), Work(fresh, 0, 5, True)])

    assert_close(mixed[:1], reference_logits(model, decoding.token_ids)[32:])
    assert_close(mixed[1:51], reference_logits(model, chunked.token_ids)[20:])
    assert_close(mixed[51:], reference_logits(model, fresh.token_ids))


@pytest.mark.parametrize("name", TINY_MODELS)
def test_greedy_generation_is_transformers(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path)
    runner = load_runner(tmp_path)
    prompts = [tokens(n, seed=n) for n in (1, 4, 30)]
    blocks = scattered(60)
    requests = [make_request(prompt, blocks[i * 20 : i * 20 + 20]) for i, prompt in enumerate(prompts)]

    for step in range(12):
        works = [
            Work(r, 0 if step == 0 else r.num_tokens - 1, r.num_tokens if step == 0 else 1, True) for r in requests
        ]
        for request, token in zip(requests, runner.run(Batch(tuple(works))), strict=True):
            assert isinstance(token, SampledToken)
            request.token_ids.append(token.token_id)

    for prompt, request in zip(prompts, requests, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert request.token_ids == expected[0].tolist()


def test_only_works_that_sample_give_tokens_in_their_order(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    runner = load_runner(tmp_path)
    blocks = scattered(30)
    requests = [make_request(tokens(12, seed=i), blocks[i * 3 : i * 3 + 3]) for i in range(3)]
    alone = [runner.run(Batch((Work(request, 0, 12, True),)))[0] for request in requests]

    works = (Work(requests[0], 0, 12, True), Work(requests[1], 0, 11, False), Work(requests[2], 0, 12, True))

    assert runner.run(Batch(works)) == [alone[0], alone[2]]
    assert runner.run(Batch((Work(requests[1], 11, 1, False),))) == []


def test_layers_that_are_told_are_written_and_stay(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    runner = load_runner(tmp_path)
    request = make_request(tokens(30), scattered(8))
    found: dict[int, Tensor] = {}

    def look(num_layers: int) -> None:
        found[num_layers] = runner.cache.tensor[request.blocks].clone()

    num_layers = runner.cache.layout.num_layers
    runner.run(Batch((Work(request, 0, 30, True),), LayerWatch((1, num_layers), look)))
    cache = runner.cache.tensor[request.blocks]
    assert list(found) == [1, num_layers]
    assert found[1][:, 0].equal(cache[:, 0])
    assert not found[1][:, 1:].any()  # the others are not computed yet
    assert found[num_layers].equal(cache)


def with_torch_attention(runner: TorchRunner) -> TorchRunner:
    runner.model.attention = torch_attention
    return runner


def test_the_fallback_attention_gives_transformers_logits_too(tmp_path: Path) -> None:
    model = save_tiny("llama", tmp_path)
    runner = with_torch_attention(load_runner(tmp_path, block_size=16))
    request = make_request(tokens(90), scattered(6, among=16))
    first = logits_of(runner, [Work(request, 0, 50, True)])
    rest = logits_of(runner, [Work(request, 50, 39, True)])
    last = logits_of(runner, [Work(request, 89, 1, True)])
    assert_close(torch.cat([first, rest, last]), reference_logits(model, request.token_ids))


def test_bfloat16_runs_and_is_near_float32(tmp_path: Path) -> None:
    model = save_tiny("llama", tmp_path)
    runner = load_torch_runner(tmp_path, EngineConfig(block_size=4, num_blocks=64, dtype="bfloat16"))
    request = make_request(tokens(20), scattered(5, among=64))
    ours = logits_of(runner, [Work(request, 0, 20, True)])
    reference = reference_logits(model, request.token_ids)
    assert runner.cache.tensor.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(ours, reference).min() > 0.99
