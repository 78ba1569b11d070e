from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.batch import Batch, Runner
from engine.engine import Engine, StepResult
from engine.errors import RequestInvalid, RequestTooLong, UnknownRequest
from engine.fake_runner import FakeRunner
from engine.request import FinishReason, Request, RequestKind, RequestState
from engine.sampled_token import SampledToken, SamplingFailure
from tests.unit.engine.conftest import RequestFactory, make_engine, run_to_end

NewEngine = Callable[..., Engine]


def test_a_prompt_is_computed_in_chunks_and_then_generates(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    prompt = list(range(19))
    engine.add(new_request(prompt, max_tokens=5))
    steps = [engine.step() for _ in range(8)]
    assert [s.num_prefill_tokens for s in steps] == [8, 8, 3, 0, 0, 0, 0, 0]
    assert [s.num_decode_tokens for s in steps] == [0, 0, 0, 1, 1, 1, 1, 0]
    assert [t.token_id for s in steps for t in s.tokens] == FakeRunner.expected(prompt, 5)
    assert steps[6].tokens[0].finish_reason is FinishReason.LENGTH
    assert engine.requests == {}
    engine.check_integrity()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 24])
def test_any_prompt_length_gives_the_same_text_cold_and_from_the_cache(
    length: int, new_request: RequestFactory
) -> None:
    engine = make_engine()
    prompt = list(range(length))
    for _ in range(2):
        engine.add(new_request(prompt, max_tokens=9))
        assert list(run_to_end(engine).values()) == [FakeRunner.expected(prompt, 9)]


def test_a_known_prefix_is_not_computed_again(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    prompt = list(range(18))
    engine.add(new_request(prompt))
    run_to_end(engine)
    engine.add(new_request(prompt))
    assert engine.step().num_prefill_tokens == 2


def test_another_tenant_shares_no_prefix(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    engine.add(new_request(range(8), cache_salt="a"))
    run_to_end(engine)
    engine.add(new_request(range(8), cache_salt="b"))
    assert engine.step().num_prefill_tokens == 8


def test_decodes_go_before_prompt_chunks_within_the_budget(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine(max_num_batched_tokens=8, max_num_seqs=8)
    engine.add(new_request(range(4), max_tokens=8))
    engine.step()
    engine.add(new_request(range(50, 70)))
    result = engine.step()
    assert (result.num_decode_tokens, result.num_prefill_tokens) == (1, 7)


def test_a_stop_token_ends_the_request(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    expected = FakeRunner.expected([1, 2, 3], 6)
    request = new_request([1, 2, 3], max_tokens=6)
    stop = expected[2]
    request.sampling = type(request.sampling)(max_tokens=6, stop_token_ids=frozenset({stop}))
    engine.add(request)
    tokens = run_to_end(engine)["r0"]
    assert tokens == expected[: expected.index(stop) + 1]


def test_without_room_the_youngest_is_preempted_and_text_stays_the_same(
    new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine = new_engine(num_blocks=12, decode_headroom_blocks=0, enable_prefix_caching=False)
    prompts = [[n, n + 1, n + 2, n + 3] for n in range(0, 40, 10)]
    requests = [new_request(prompt, max_tokens=20) for prompt in prompts]
    for request in requests:
        engine.add(request)
    tokens = run_to_end(engine)
    assert tokens == {r.request_id: FakeRunner.expected(p, 20) for r, p in zip(requests, prompts, strict=True)}
    assert requests[0].num_preemptions == 0
    assert 0 < max(r.num_preemptions for r in requests) < 10


def test_requests_that_fit_one_at_a_time_all_finish_without_thrashing(
    new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine = new_engine(num_blocks=8)
    requests = [new_request([n] * 12, max_tokens=20) for n in range(10)]
    for request in requests:
        engine.add(request)
    tokens = run_to_end(engine, max_steps=2000)
    assert all(len(tokens[r.request_id]) == 20 for r in requests)
    assert max(r.num_preemptions for r in requests) < 10


def test_what_can_never_fit_is_refused_with_the_limit(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine(num_blocks=4)
    with pytest.raises(RequestTooLong, match="KV cache holds 16"):
        engine.add(new_request(range(10), max_tokens=7))
    with pytest.raises(RequestTooLong, match="context is 4096"):
        new_engine(num_blocks=2000).add(new_request(range(10), max_tokens=5000))


def test_a_prefill_request_is_held_after_its_first_token(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    request = new_request(range(10), kind=RequestKind.PREFILL)
    engine.add(request)
    assert run_to_end(engine) == {"r0": FakeRunner.expected(range(10), 1)}
    assert request.state is RequestState.HELD
    engine.abort("r0")
    engine.check_integrity()
    assert engine.pool.counts().used == 0


def test_an_opened_prompt_takes_the_blocks_of_one_that_nobody_opened(
    new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine = new_engine(num_blocks=8, enable_prefix_caching=False)
    unread = new_request(range(20), kind=RequestKind.PREFILL)
    opened = new_request(range(50, 74), kind=RequestKind.PREFILL)
    engine.add(unread)
    run_to_end(engine)
    engine.add(opened)
    assert engine.step().num_tokens == 0
    engine.pin(opened.request_id)
    assert run_to_end(engine)[opened.request_id] == FakeRunner.expected(range(50, 74), 1)
    assert unread.state is RequestState.WAITING
    engine.abort(opened.request_id)
    assert run_to_end(engine)[unread.request_id] == FakeRunner.expected(range(20), 1)


def receive(engine: Engine, source: Engine, prompt: list[int], new_request: RequestFactory) -> list[int]:
    """Hands a prompt's KV from one engine to the other by copying blocks, and generates there."""
    held = new_request(prompt, kind=RequestKind.PREFILL)
    source.add(held)
    first = run_to_end(source)[held.request_id][0]
    request = new_request(prompt, max_tokens=7, awaits_kv=True)
    engine.add(request)
    assert list(engine.step().reserved) == [request]
    engine.cache.write_blocks(request.blocks, source.cache.as_bytes()[torch.tensor(held.blocks)])
    output = engine.accept(request.request_id, SampledToken(first))
    return [output.token_id, *run_from_one(engine)]


def run_from_one(engine: Engine) -> list[int]:
    tokens = []
    while (result := engine.step()).num_tokens:
        tokens += [t.token_id for t in result.tokens]
    return tokens


def test_received_kv_gives_the_same_text_and_computes_no_prompt_token(
    new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine, source = new_engine(), new_engine()
    prompt = list(range(30, 49))
    assert receive(engine, source, prompt, new_request) == FakeRunner.expected(prompt, 7)
    engine.check_integrity()
    assert engine.requests == {}


def test_received_blocks_are_private_until_they_are_accepted(
    new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine = new_engine()
    engine.add(new_request(range(16), awaits_kv=True))
    engine.step()
    engine.add(new_request(range(16)))
    assert engine.step().num_prefill_tokens == 8


def receive_prefix(engine: Engine, source: Engine, request: Request, num_tokens: int) -> None:
    """Hands over the KV of the first tokens of a request's prompt."""
    held = Request("held", request.token_ids[:num_tokens], num_tokens, request.sampling, RequestKind.PREFILL)
    source.add(held)
    run_to_end(source)
    engine.add(request)
    assert request in engine.step().reserved
    first, last = request.num_computed // engine.config.block_size, num_tokens // engine.config.block_size
    ours, theirs = request.blocks[first:last], held.blocks[first:last]
    engine.cache.write_blocks(ours, source.cache.as_bytes()[torch.tensor(theirs, dtype=torch.int64)])
    engine.accept_prefix(request.request_id, num_tokens)
    engine.check_integrity()


@pytest.mark.parametrize("num_received", [4, 16])
@pytest.mark.parametrize("kind", [RequestKind.GENERATE, RequestKind.PREFILL])
def test_after_a_received_prefix_only_the_rest_is_computed(
    new_engine: NewEngine, new_request: RequestFactory, num_received: int, kind: RequestKind
) -> None:
    engine, prompt = new_engine(), list(range(30, 49))
    request = new_request(prompt, max_tokens=5, kind=kind, awaits_kv=True)
    receive_prefix(engine, new_engine(), request, num_received)
    computed, tokens = 0, []
    while (result := engine.step()).num_tokens:
        computed += result.num_prefill_tokens
        tokens += [output.token_id for output in result.tokens]
        engine.check_integrity()
    assert tokens == FakeRunner.expected(prompt, 5 if kind is RequestKind.GENERATE else 1)
    assert computed == 19 - num_received
    assert engine.pool.lookup(request.block_hashes[:4]) != []


def test_a_received_prefix_adds_to_what_was_here(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine, prompt = new_engine(), list(range(30, 49))
    engine.add(new_request(prompt[:8]))
    run_to_end(engine)
    request = new_request(prompt, max_tokens=5, awaits_kv=True)
    receive_prefix(engine, new_engine(), request, 12)
    assert request.num_cached == 8
    assert run_to_end(engine)[request.request_id] == FakeRunner.expected(prompt, 5)


def test_what_cannot_be_a_received_prefix_is_refused(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    engine.add(new_request(range(8)))
    run_to_end(engine)
    request = new_request(range(12), awaits_kv=True)
    engine.add(request)
    engine.step()
    for num_tokens in (4, 9, 12, 16):  # less than it has, part of a block, all, more than all
        with pytest.raises(ValueError, match=r"it has 8 of 12, in blocks of 4"):
            engine.accept_prefix(request.request_id, num_tokens)
    engine.accept_prefix(request.request_id, 8)
    with pytest.raises(UnknownRequest, match="running, not receiving"):
        engine.accept_prefix(request.request_id, 8)
    assert run_to_end(engine)[request.request_id] == FakeRunner.expected(range(12), 4)


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_a_preempted_request_that_received_a_prefix_asks_nobody_again(
    new_engine: NewEngine, new_request: RequestFactory, preemption: str
) -> None:
    engine, source = new_engine(num_blocks=12, preemption=preemption), new_engine()
    requests = [new_request([n] * 9, max_tokens=20, awaits_kv=True) for n in range(3)]
    for request in requests:
        receive_prefix(engine, source, request, 8)
        source.abort("held")
    hits, reserved, preempted = engine.pool.num_hits, 0, 0
    while (result := engine.step()).num_tokens:
        engine.check_integrity()
        reserved, preempted = reserved + len(result.reserved), preempted + len(result.preempted)
        assert engine.pool.num_hits >= hits
        hits = engine.pool.num_hits
    assert (reserved, preempted > 0) == (0, True)
    assert [r.token_ids[9:] for r in requests] == [FakeRunner.expected([n] * 9, 20) for n in range(3)]


def test_wrong_kv_gives_other_text(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    request = new_request(range(8), max_tokens=3, awaits_kv=True)
    engine.add(request)
    engine.step()
    first = FakeRunner.expected(range(8), 1)[0]
    engine.accept(request.request_id, SampledToken(first))
    assert run_from_one(engine) != FakeRunner.expected(range(8), 3)[1:]


def test_transfers_wait_on_a_bounded_share_of_the_blocks(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine(num_blocks=16, max_receiving_share=0.5)
    for n in range(3):
        engine.add(new_request([n] * 16, awaits_kv=True))
    assert len(engine.step().reserved) == 2
    assert next(iter(engine.scheduler.waiting)).request_id == "r2"
    engine.abort("r0")
    assert [r.request_id for r in engine.step().reserved] == ["r2"]


def test_only_a_receiving_request_is_accepted(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine()
    engine.add(new_request(range(3)))
    with pytest.raises(UnknownRequest, match="waiting, not receiving"):
        engine.accept("r0", SampledToken(1))
    assert engine.abort("r0")
    assert not engine.abort("r0")


def test_a_batch_that_the_model_cannot_run_fails_its_requests_only(
    new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine = new_engine()
    engine.add(new_request([1, 2]))
    engine.runner = BrokenRunner()
    result: StepResult = engine.step()
    assert list(result.failed) == [("r0", "RuntimeError: no such kernel")]
    engine.check_integrity()
    assert engine.pool.counts().used == 0


class BrokenRunner:
    def run(self, batch: Batch) -> Sequence[SampledToken | SamplingFailure]:
        raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompt": []}, "prompt_ids is empty"),
        ({"prompt": [1, 257]}, "token id 257"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -5}, "top_k"),
    ],
)
def test_what_would_fail_a_batch_is_refused_by_name(
    changes: dict[str, Any], named: str, new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine = new_engine()
    request = new_request(changes.pop("prompt", [1, 2]))
    request.sampling = replace(request.sampling, **changes)
    with pytest.raises(RequestInvalid, match=named):
        engine.add(request)
    assert engine.requests == {}


def test_a_prefill_needs_room_for_its_prompt_only(new_engine: NewEngine, new_request: RequestFactory) -> None:
    engine = new_engine(num_blocks=4)
    engine.add(new_request(range(15), max_tokens=1000, kind=RequestKind.PREFILL))
    with pytest.raises(RequestTooLong, match="KV cache holds 16"):
        engine.add(new_request(range(16), kind=RequestKind.PREFILL))


def test_one_request_that_the_model_cannot_compute_does_not_end_its_neighbours(
    new_engine: NewEngine, new_request: RequestFactory
) -> None:
    engine = new_engine()
    engine.runner = PoisonedRunner(engine.runner, token=66)
    prompts = [[1, 2, 3], [66, 66], [4, 5]]
    for prompt in prompts:
        engine.add(new_request(prompt))
    result = engine.step()
    engine.check_integrity()
    assert [request_id for request_id, _ in result.failed] == ["r1"]
    tokens = {t.request_id: [t.token_id] for t in result.tokens}
    for request_id, more in run_to_end_from(engine).items():
        tokens[request_id] += more
    assert tokens == {"r0": FakeRunner.expected(prompts[0], 4), "r2": FakeRunner.expected(prompts[2], 4)}


def run_to_end_from(engine: Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while (result := engine.step()).num_tokens:
        for output in result.tokens:
            tokens.setdefault(output.request_id, []).append(output.token_id)
    return tokens


class PoisonedRunner:
    """Fails every batch that holds one certain token."""

    def __init__(self, runner: Runner, token: int) -> None:
        self._runner = runner
        self._token = token

    def run(self, batch: Batch) -> Sequence[SampledToken | SamplingFailure]:
        if any(self._token in work.request.token_ids for work in batch.works):
            raise RuntimeError("a kernel that does not like this token")
        return self._runner.run(batch)
