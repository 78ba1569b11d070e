"""What a request asks of sampling is the same whether its first token came from a prefill worker or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from bench.fake_model import write_fake_model
from engine.config import EngineConfig
from engine.fake_runner import EOS_TOKEN_ID, VOCAB_SIZE
from kv_transfer.config import TransferConfig
from rpc import worker_pb2
from tests.unit.engine_model.tiny_models import save_tiny
from tests.unit.workers.pair import Pair, token_request

PROMPT = list(b"The quick brown fox")
WORDS = LLMatcher.grammar_from_regex("([a-z]{2,3} ){3}[.]")
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 3},
    "penalized": {"frequency_penalty": 1.5, "repetition_penalty": 1.5, "logit_bias": {EOS_TOKEN_ID: -100.0}},
    "biased": {"logit_bias": {ord("q"): 12.0, ord("Z"): 100.0}, "temperature": 0.9, "min_p": 0.05},
    "not yet": {"min_tokens": 5, "logit_bias": {EOS_TOKEN_ID: 100.0}},
    "by a grammar": {"grammar": WORDS, "temperature": 1.0, "seed": 8},
}


@pytest.fixture(params=["fake", "tiny"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """Over the fake model, then over a small random one with the same tokens."""
    write_fake_model(tmp_path)
    if request.param == "tiny":
        save_tiny("llama", tmp_path, vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
    engine = EngineConfig(block_size=4, num_blocks=64, enable_prefix_caching=False)
    async with Pair(engine, TransferConfig(staging_slots=4, max_quarantined_slots=3), tmp_path) as pair:
        yield pair
        await pair.check_idle()


def asking(request_id: str, output: list[int] | None = None, **sampling: Any) -> worker_pb2.TokenRequest:
    stops = {"stop_token_ids": [EOS_TOKEN_ID]}
    return token_request(request_id, PROMPT, 16, output=output, **(stops | sampling))


def logprobs(pair: Pair, request_id: str) -> list[worker_pb2.TokenLogprobs]:
    return [told for tokens in pair.to_d.tokens(request_id) for told in tokens.logprobs]


@pytest.mark.parametrize("way", WAYS)
async def test_tokens_and_logprobs_are_those_of_a_worker_that_computes_the_prompt_itself(pair: Pair, way: str) -> None:
    pair.start(asking("apart", num_logprobs=5, **WAYS[way]))
    pair.start_decode(asking("together", num_logprobs=5, **WAYS[way]))
    apart, together = await pair.to_d.finished("apart"), await pair.to_d.finished("together")
    assert apart == together
    told = logprobs(pair, "apart")
    assert len(told) == len(apart)
    for ours, theirs in zip(told, logprobs(pair, "together"), strict=True):
        assert list(ours.top_ids) == list(theirs.top_ids)
        assert [ours.logprob, *ours.top_logprobs] == pytest.approx([theirs.logprob, *theirs.top_logprobs], abs=1e-3)


async def test_a_first_token_that_ends_the_request_has_its_logprobs(pair: Pair) -> None:
    pair.start(asking("r", num_logprobs=0, logit_bias={EOS_TOKEN_ID: 100.0}))
    assert await pair.to_d.finished("r") == [EOS_TOKEN_ID]
    assert len(logprobs(pair, "r")) == 1


async def test_logprobs_are_not_told_to_who_did_not_ask(pair: Pair) -> None:
    pair.start(asking("r"))
    await pair.to_d.finished("r")
    assert logprobs(pair, "r") == []


@pytest.mark.parametrize("way", ["penalized", "not yet", "by a grammar"])
async def test_a_request_that_moved_goes_on_with_its_counts_and_its_grammar(pair: Pair, way: str) -> None:
    pair.start(asking("whole", **WAYS[way]))
    whole = await pair.to_d.finished("whole")
    pair.start(asking("moved", output=whole[:2], **WAYS[way]))
    assert await pair.to_d.finished("moved") == whole[2:]


async def test_a_grammar_that_cannot_be_used_is_refused_by_both_workers(pair: Pair) -> None:
    pair.start(asking("r", grammar="no grammar"))
    for stream in (pair.to_p, pair.to_d):
        failed = await stream.event("failed")
        assert failed.code == worker_pb2.FAILURE_INVALID
        assert failed.message.startswith("grammar cannot be used")
    assert pair.prefill.num_open == pair.decode.num_open == 0


async def test_an_abort_while_a_grammar_is_compiled_leaves_nothing(pair: Pair) -> None:
    pair.start(asking("r", grammar=LLMatcher.grammar_from_regex("[a-z]{1,400}[0-9]{1,400}")))
    pair.prefill.abort("r", 1, pair.to_p)
    pair.decode.abort("r", 1, pair.to_d)
    await asyncio.wait_for(pair.prefill.wait_idle(), 5)
    await asyncio.wait_for(pair.decode.wait_idle(), 5)
    await pair.check_idle()
    assert pair.to_d.tokens("r") == []


async def test_completions_that_broke_their_grammar_fail_and_the_workers_go_on(pair: Pair) -> None:
    for n in range(4):  # more than the failed steps in a row that end an engine
        pair.start_decode(asking(f"wrong {n}", output=[ord("X")], grammar=WORDS))
        assert "the grammar cannot go on" in (await pair.to_d.event("failed")).message
        pair.to_d.events.clear()
    pair.start(asking("right", grammar=WORDS))
    assert bytes((await pair.to_d.finished("right"))[:-1]).endswith(b" .")
