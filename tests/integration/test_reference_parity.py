"""The default model, as converted and as computed here, against transformers on the same folder.

Every generated token must be the reference's best given the tokens before it. Where the reference's two best logits
differ by less than float32 rounding through 30 layers (ROUNDING), either is right; nothing else is forgiven.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from deploy.model_store import DEFAULT_MODEL, default_cache_dir, resolve_model
from engine.attention_cpu import CpuAttention
from engine.batch import Batch, Work
from engine.config import EngineConfig
from engine.model_config import ModelConfig
from engine.request import Request, SamplingParams
from engine.sampled_token import SampledToken
from engine.torch_runner import TorchRunner, load_torch_runner

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROUNDING = 5e-4  # of a logit
BLOCK_SIZE = 16
NUM_BLOCKS = 300
NUM_TOKENS = 8
TEXT = " ".join(f"{i} times {i + 3} is {i * (i + 3)}, and that is a fact." for i in range(150))
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "1, 1, 2, 3, 5, 8,",
    "Žluťoučký kůň",
    "<|im_start|>user\nWhat is the boiling point of water?<|im_end|>\n<|im_start|>assistant\n",
    "a",
]
LENGTHS = [1, 15, 16, 17, 255, 256, 257]  # tokens of TEXT
LONG = 1100


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model(DEFAULT_MODEL, default_cache_dir(os.environ))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference(folder: Path, one_thread: None) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture(scope="module")
def runner(folder: Path, one_thread: None) -> TorchRunner:
    return load_torch_runner(folder, EngineConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS))


@pytest.fixture(
    scope="module", params=[LENGTHS, pytest.param([LONG, *LENGTHS], marks=pytest.mark.long)], ids=["short", "long"]
)
def prompts(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    text = tokenizer(TEXT).input_ids
    return [tokenizer(prompt).input_ids for prompt in PROMPTS] + [text[:n] for n in request.param]


@pytest.fixture(scope="module")
def gaps(reference: PreTrainedModel) -> Callable[[tuple[int, ...], int], list[float]]:
    """How far each generated token is below the reference's best, given all before it; 0 where it is the best."""

    @cache
    def judge(token_ids: tuple[int, ...], num_prompt: int) -> list[float]:
        with torch.inference_mode():
            logits = reference(torch.tensor([token_ids[:-1]]), logits_to_keep=len(token_ids) - num_prompt).logits[0]
        chosen = logits.gather(1, torch.tensor(token_ids[num_prompt:]).unsqueeze(1)).squeeze(1)
        below: list[float] = (logits.amax(dim=1) - chosen).tolist()
        return below

    return judge


def generate(runner: TorchRunner, prompts: list[list[int]], chunk_size: int) -> list[list[int]]:
    """All prompts side by side: whoever has more than a chunk left takes a chunk, the others decode meanwhile."""
    blocks = iter(range(NUM_BLOCKS - 1, -1, -1))
    requests = [
        Request(str(i), list(prompt), len(prompt), SamplingParams(NUM_TOKENS)) for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        request.blocks = [next(blocks) for _ in range(-(-(request.num_prompt + NUM_TOKENS) // BLOCK_SIZE))]
    while running := [request for request in requests if request.num_generated < NUM_TOKENS]:
        sizes = [min(request.num_uncomputed, chunk_size) for request in running]
        works = [
            Work(request, request.num_computed, size, size == request.num_uncomputed)
            for request, size in zip(running, sizes, strict=True)
        ]
        batch = Batch(tuple(works))
        tokens = runner.run(batch)
        for work in works:
            work.request.num_computed = work.end
        for work, token in zip(batch.sampled, tokens, strict=True):
            assert isinstance(token, SampledToken)
            work.request.token_ids.append(token.token_id)
    return [request.token_ids[request.num_prompt :] for request in requests]


def test_the_converted_model_is_smollm2(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.vocab_size, config.max_model_len, config.rope_theta) == (49152, 8192, 100000.0)
    assert config.eos_token_ids == (2,)
    assert config.tie_embeddings


def test_the_converted_model_knows_the_capital_of_france(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert reference.dtype == torch.float32
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    assert tokenizer.decode(reference.generate(**prompt, max_new_tokens=2, do_sample=False)[0]).endswith("is Paris.")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello, world!\n\n\tIt's 3:45 p.m.",
        "1234567890 and 3.14159",
        "naïve café – Žluťoučký kůň",
        "日本語と中文と한국어",
        "👨‍👩‍👧‍👦 🇨🇿 e\u0301 \u200f\u0000",
        "สวัสดี नमस्ते مرحبا",
        "    def f(x):\r\n        return x  # comment",
    ],
)
def test_text_survives_the_tokenizer(text: str, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = ours.encode(text).ids
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert ids == tokenizer(text).input_ids


def test_digits_are_tokens_of_their_own_and_control_tokens_are_whole(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("2024 007").tokens == ["2", "0", "2", "4", "Ġ", "0", "0", "7"]
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
    assert tokenizer.encode("x<|im_end|><|endoftext|>").ids[1:] == [2, 0]
    assert tokenizer.get_vocab_size() == 49152


def test_the_chat_template_is_smollm2s_with_and_without_transformers(
    folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    for chat in (messages[:1], messages, [{"role": "system", "content": "Be brief."}, *messages]):
        rendered = environment.from_string(template).render(messages=chat, add_generation_prompt=True)
        assert rendered == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_greedy_text_alone_is_the_references(
    runner: TorchRunner, prompts: list[list[int]], gaps: Callable[[tuple[int, ...], int], list[float]]
) -> None:
    assert isinstance(runner.model.attention, CpuAttention)
    for prompt in prompts:
        text = generate(runner, [prompt], chunk_size=2048)[0]
        assert max(gaps((*prompt, *text), len(prompt))) < ROUNDING


@pytest.mark.parametrize("chunk_size", [50, pytest.param(256, marks=pytest.mark.long)])
def test_greedy_text_side_by_side_and_in_chunks_is_the_references(
    chunk_size: int,
    runner: TorchRunner,
    prompts: list[list[int]],
    gaps: Callable[[tuple[int, ...], int], list[float]],
) -> None:
    for prompt, text in zip(prompts, generate(runner, prompts, chunk_size), strict=True):
        assert max(gaps((*prompt, *text), len(prompt))) < ROUNDING
