"""Same seed, same text and log-probabilities: alone, in a crowd, preempted, handed over, and moved.

A small random model with bytes for tokens; every way of asking for a token is tried in every situation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher

from bench.fake_model import write_fake_model
from engine.config import EngineConfig
from engine.engine import Engine, ModelInfo
from engine.fake_runner import EOS_TOKEN_ID, VOCAB_SIZE
from engine.grammar import Grammars
from engine.request import Request, RequestKind, SamplingParams
from engine.scheduler import TokenOutput
from engine.scheduling import SchedulingConfig
from engine.torch_runner import load_torch_runner
from tests.unit.engine_model.tiny_models import save_tiny

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DRAWN = SamplingParams(
    max_tokens=24, temperature=1.0, seed=1234, num_logprobs=3, stop_token_ids=frozenset({EOS_TOKEN_ID})
)
WAYS = {
    "greedy": replace(DRAWN, temperature=0.0),
    "drawn": DRAWN,
    "narrowed": replace(DRAWN, temperature=0.8, top_p=0.9, top_k=40, min_p=0.01),
    "penalized": replace(DRAWN, presence_penalty=1.0, frequency_penalty=0.7, repetition_penalty=1.3),
    "penalized greedy": replace(DRAWN, temperature=0.0, frequency_penalty=2.0, repetition_penalty=1.2),
    "biased": replace(DRAWN, logit_bias=tuple((token_id, 4.0) for token_id in b"etaoin")),
    "at least": replace(DRAWN, min_tokens=10, logit_bias=((EOS_TOKEN_ID, 20.0),)),
    "regex": replace(DRAWN, grammar=LLMatcher.grammar_from_regex("([a-z]{2,5} ){3,9}[.]")),
    "json": replace(DRAWN, max_tokens=60, grammar=LLMatcher.grammar_from_json_schema(SCHEMA)),
    "all": replace(
        DRAWN,
        top_p=0.95,
        min_p=0.01,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias=((ord("e"), 3.0), (ord("q"), -100.0)),
        grammar=LLMatcher.grammar_from_regex("[a-z ]{9,30}"),
    ),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", folder, vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
    return folder


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_model(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Engines:
    """Makes engines over the one small model."""

    def __init__(self, model_dir: Path, tokenizer_dir: Path) -> None:
        self._model_dir = model_dir
        self._tokenizer_dir = tokenizer_dir

    def __call__(self, num_blocks: int = 600, **scheduling: object) -> Engine:
        config = EngineConfig(
            block_size=4,
            num_blocks=num_blocks,
            enable_prefix_caching=False,
            scheduling=SchedulingConfig.model_validate({"prefill_chunk_size": 16} | scheduling),
        )
        grammars = Grammars(self._tokenizer_dir, {EOS_TOKEN_ID})
        runner = load_torch_runner(self._model_dir, config, grammars)
        info = ModelInfo("tiny", 512, VOCAB_SIZE, frozenset({EOS_TOKEN_ID}))
        return Engine(config, info, runner, runner.cache, grammars)


@pytest.fixture(scope="module")
def engines(model_dir: Path, tokenizer_dir: Path) -> Engines:
    return Engines(model_dir, tokenizer_dir)


def prompt(seed: int, length: int = 21) -> list[int]:
    return random.Random(seed).choices(range(32, 127), k=length)


def request(
    name: str, sampling: SamplingParams, generated: list[int] | None = None, kind: RequestKind = RequestKind.GENERATE
) -> Request:
    started = [*prompt(7), *(generated or [])]
    return Request(name, started, 21, sampling, kind, first_index=len(generated or []))


def run(engine: Engine, *requests: Request) -> dict[str, list[TokenOutput]]:
    """Until all have ended; what each was told."""
    for started in requests:
        engine.add(started)
    told: dict[str, list[TokenOutput]] = {started.request_id: [] for started in requests}
    while (result := engine.step()).num_tokens:
        assert not result.failed
        for output in result.tokens:
            told[output.request_id].append(output)
    engine.check_integrity()
    return told


def crowd(size: int) -> list[Request]:
    """Others of all ways, half of them with the same seed as the request that is looked at."""
    ways = list(WAYS.values())
    return [
        Request(f"other {n}", prompt(n, 3 + n), 3 + n, replace(ways[n % len(ways)], seed=n if n % 2 else DRAWN.seed))
        for n in range(size)
    ]


def assert_same(told: list[TokenOutput], expected: list[TokenOutput]) -> None:
    assert [output.token_id for output in told] == [output.token_id for output in expected]
    assert [output.finish_reason for output in told] == [output.finish_reason for output in expected]
    for ours, theirs in zip(told, expected, strict=True):
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-3)
        assert ours.logprobs.top_ids == theirs.logprobs.top_ids
        assert ours.logprobs.top_logprobs == pytest.approx(theirs.logprobs.top_logprobs, abs=1e-3)


@pytest.fixture(scope="module")
def alone(engines: Engines) -> dict[str, list[TokenOutput]]:
    return {way: run(engines(), request(way, sampling))[way] for way, sampling in WAYS.items()}


def test_the_ways_differ_and_do_what_they_say(alone: dict[str, list[TokenOutput]]) -> None:
    texts = {way: bytes(output.token_id for output in told if output.token_id < 256) for way, told in alone.items()}
    assert len(set(texts.values())) == len(WAYS)
    assert len(alone["at least"]) == 11  # the bias ends it as soon as it may end
    assert alone["at least"][-1].token_id == EOS_TOKEN_ID
    assert set(texts["all"]) <= set(b"abcdefghijklmnoprstuvwxyz ")
    assert set(texts["regex"]) <= set(b"abcdefghijklmnopqrstuvwxyz .")


@pytest.mark.parametrize("strategy", ["chunked", "prefill_first"])
def test_in_a_crowd_of_31_others(strategy: str, engines: Engines, alone: dict[str, list[TokenOutput]]) -> None:
    others = crowd(32 - len(WAYS))
    requests = [request(way, sampling) for way, sampling in WAYS.items()]
    told = run(engines(strategy=strategy), *others, *requests)
    for way in WAYS:
        assert_same(told[way], alone[way])


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_after_preemption(preemption: str, engines: Engines, alone: dict[str, list[TokenOutput]]) -> None:
    engine = engines(num_blocks=40, preemption=preemption, decode_headroom_blocks=0)
    requests = [request(way, sampling) for way, sampling in WAYS.items()]
    told = run(engine, *requests)
    assert sum(started.num_preemptions > 0 for started in requests) >= 3
    for way in WAYS:
        assert_same(told[way], alone[way])


def hand_over(
    source: Engine, target: Engine, sampling: SamplingParams, generated: list[int] | None = None
) -> list[TokenOutput]:
    """What a hand-off does: one engine computes the prompt, the other gets its KV and speaks its first token."""
    prefilled = request("prefilled", sampling, generated, RequestKind.PREFILL)
    source.add(prefilled)
    while prefilled.held_token is None:
        source.step()
    received = request("received", sampling, generated)
    received.awaits_kv = True
    target.add(received)
    target.step()
    for theirs, ours in zip(prefilled.blocks, received.blocks, strict=False):  # one has room for the next token too
        target.cache.tensor[ours] = source.cache.tensor[theirs]
    told = [target.accept("received", prefilled.held_token)]
    while (result := target.step()).num_tokens:
        told += result.tokens
    return told


@pytest.mark.parametrize("way", WAYS)
def test_with_the_prompt_and_the_first_token_from_another_engine(
    way: str, engines: Engines, alone: dict[str, list[TokenOutput]]
) -> None:
    assert_same(hand_over(engines(), engines(), WAYS[way]), alone[way])


@pytest.mark.parametrize("way", WAYS)
def test_moved_in_the_middle_by_a_hand_off_or_to_be_computed_again(
    way: str, engines: Engines, alone: dict[str, list[TokenOutput]]
) -> None:
    generated = [output.token_id for output in alone[way][:7]]
    assert_same(hand_over(engines(), engines(), WAYS[way], generated), alone[way][7:])
    assert_same(run(engines(), request(way, WAYS[way], generated))[way], alone[way][7:])


def test_another_seed_is_another_text(engines: Engines, alone: dict[str, list[TokenOutput]]) -> None:
    other = run(engines(), request("r", replace(DRAWN, seed=4321)))["r"]
    assert [output.token_id for output in other] != [output.token_id for output in alone["drawn"]]


def test_a_grammar_ends_its_text_with_the_end_of_text(engines: Engines) -> None:
    sampling = replace(DRAWN, grammar=LLMatcher.grammar_from_regex("[a-c]{5}"))
    told = run(engines(), request("r", sampling))["r"]
    assert bytes(output.token_id for output in told[:-1]).strip(b"abc") == b""
    assert (len(told), told[-1].token_id, told[-1].finish_reason) == (6, EOS_TOKEN_ID, "stop")


def test_requests_that_broke_their_grammar_fail_alone(engines: Engines) -> None:
    engine = engines()
    wrong = replace(DRAWN, grammar=LLMatcher.grammar_from_regex("[a-c]{50}"))
    engine.add(running := Request("running", prompt(1), 21, DRAWN))
    for n in range(5):
        engine.add(request(f"wrong {n}", wrong, generated=[ord("x")]))
    unsampled: list[tuple[str, str]] = []
    while (result := engine.step()).num_tokens:  # what was computed counts: no fault of the device
        assert not result.failed
        unsampled += result.unsampled
    assert sorted(request_id for request_id, _ in unsampled) == [f"wrong {n}" for n in range(5)]
    assert all("the grammar cannot go on" in message for _, message in unsampled)
    engine.check_integrity()
    assert list(engine.requests) == []
    assert running.num_generated > 0
