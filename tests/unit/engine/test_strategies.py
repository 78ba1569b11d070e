"""What each strategy does with the same requests, step by step, on a fake model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from engine.engine import Engine
from engine.fake_runner import FakeRunner
from engine.sampled_token import SampledToken
from engine.scheduling import STRATEGIES, SchedulingConfig
from tests.unit.engine.conftest import RequestFactory, make_engine, run_to_end

NewEngine = Callable[..., Engine]
Steps = list[dict[str, int]]
WHOLE = {"max_num_batched_tokens": 4096 + 32, "num_blocks": 256}  # room for the model's whole context in one step


def steps_of(engine: Engine) -> Steps:
    """Who computed how many tokens in each step, until nothing moves."""
    steps: Steps = []
    while works := engine.step().works:
        steps.append({work.request.request_id: work.num_tokens for work in works})
        engine.check_integrity()
    return steps


def span(steps: Steps, request_id: str) -> tuple[int, int]:
    """The first and the last step that a request was in."""
    present = [i for i, step in enumerate(steps) if request_id in step]
    return present[0], present[-1]


def test_under_continuous_batching_a_place_is_taken_in_the_very_next_step(new_request: RequestFactory) -> None:
    engine = make_engine(max_num_seqs=3)
    for n, length in enumerate((5, 8, 3, 6, 4)):
        engine.add(new_request([n] * 4, max_tokens=length))
    steps = steps_of(engine)
    ends = sorted(range(5), key=lambda n: span(steps, f"r{n}")[1])
    assert ends[0] == 2
    assert span(steps, "r3")[0] == span(steps, "r2")[1] + 1
    assert span(steps, "r4")[0] == span(steps, "r0")[1] + 1
    assert all(len(step) == 3 for step in steps[: span(steps, "r1")[1]])


def test_under_static_batching_everybody_waits_for_the_slowest(new_request: RequestFactory) -> None:
    engine = make_engine(strategy="static", max_num_seqs=3, **WHOLE)
    for n, length in enumerate((5, 8, 3, 6, 4)):
        engine.add(new_request([n] * 4, max_tokens=length))
    steps = steps_of(engine)
    assert [set(step) for step in steps[:3]] == [{"r0", "r1", "r2"}] * 3
    assert [set(step) for step in steps[5:8]] == [{"r1"}] * 3  # the others' places stay empty
    assert span(steps, "r3")[0] == span(steps, "r4")[0] == span(steps, "r1")[1] + 1


def test_chunks_of_a_long_prompt_leave_room_for_a_short_one_and_its_decodes(new_request: RequestFactory) -> None:
    engine = make_engine(num_blocks=512, max_num_batched_tokens=512, prefill_chunk_size=256, max_num_partial_prefills=2)
    engine.add(new_request([1] * 1024, max_tokens=5))
    engine.add(new_request([2] * 128, max_tokens=8))
    steps = steps_of(engine)
    assert [step["r0"] for step in steps[:4]] == [256] * 4
    assert [step["r1"] for step in steps[:4]] == [128, 1, 1, 1]


def test_a_new_prompt_interrupts_decodes_under_prefill_first(new_request: RequestFactory) -> None:
    engine = make_engine(strategy="prefill_first", **WHOLE)
    engine.add(new_request(range(4), max_tokens=10))
    engine.step()
    engine.step()
    engine.add(new_request([9] * 60, max_tokens=2))
    steps = steps_of(engine)
    assert steps[0] == {"r1": 60}
    assert steps[1] == {"r0": 1, "r1": 1}


def test_a_whole_prompt_runs_beside_decodes_under_mixed(new_request: RequestFactory) -> None:
    engine = make_engine(strategy="mixed", **WHOLE)
    engine.add(new_request(range(4), max_tokens=10))
    engine.step()
    engine.add(new_request([9] * 60, max_tokens=2))
    assert steps_of(engine)[0] == {"r0": 1, "r1": 60}


def test_no_prompt_is_admitted_under_decode_first_while_somebody_decodes(new_request: RequestFactory) -> None:
    engine = make_engine(strategy="decode_first")
    engine.add(new_request(range(4), max_tokens=6))
    engine.step()
    engine.add(new_request([9] * 60, max_tokens=2))
    steps = steps_of(engine)
    assert steps[:5] == [{"r0": 1}] * 5
    assert steps[5] == {"r1": 8}


def test_a_decode_whose_kv_comes_from_a_peer_joins_under_decode_first(new_request: RequestFactory) -> None:
    engine = make_engine(strategy="decode_first")
    engine.add(new_request(range(4), max_tokens=6))
    engine.step()
    received = new_request(range(9), max_tokens=4, awaits_kv=True)
    engine.add(received)
    assert list(engine.step().reserved) == [received]
    engine.accept(received.request_id, SampledToken(1))
    assert set(steps_of(engine)[0]) == {"r0", "r1"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_text_is_the_same_under_every_strategy(strategy: str, new_request: RequestFactory) -> None:
    engine = make_engine(strategy=strategy, max_num_seqs=3, decode_headroom_blocks=0, **(WHOLE | {"num_blocks": 24}))
    prompts = [[n] * size for n, size in enumerate((9, 40, 1, 17, 8, 33))]
    for prompt in prompts:
        engine.add(new_request(prompt, max_tokens=11))
    assert run_to_end(engine) == {f"r{n}": FakeRunner.expected(prompt, 11) for n, prompt in enumerate(prompts)}


def test_no_more_prompts_are_in_pieces_than_the_knob_allows(new_request: RequestFactory) -> None:
    engine = make_engine(num_blocks=128, max_num_batched_tokens=32, prefill_chunk_size=8, max_num_partial_prefills=2)
    for n in range(4):
        engine.add(new_request([n] * 40, max_tokens=1))
    engine.add(new_request([9] * 5, max_tokens=1))
    first = steps_of(engine)[0]
    assert first == {"r0": 8, "r1": 8, "r4": 5}  # a prompt that fits whole goes ahead


def test_one_long_prompt_at_a_time_leaves_the_others_to_short_ones(new_request: RequestFactory) -> None:
    engine = make_engine(num_blocks=256, max_num_batched_tokens=32, long_prefill_token_threshold=64)
    for n in range(3):
        engine.add(new_request([n] * 100, max_tokens=2))
    for n in range(3, 6):
        engine.add(new_request([n] * 10, max_tokens=2))
    steps = steps_of(engine)
    assert {"r0", "r3", "r4"} <= set(steps[0])
    assert all(sum(step.get(f"r{n}", 0) > 1 for n in range(3)) <= 1 for step in steps)
    assert max(span(steps, f"r{n}")[1] for n in range(3, 6)) < span(steps, "r1")[0]
    assert span(steps, "r1")[0] < span(steps, "r2")[0]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prefill_chunk_size": 600}, r"prefill_chunk_size \(600\) is larger than max_num_batched_tokens \(512\)"),
        ({"max_num_seqs": 600}, "a step could not hold one token of each"),
        ({"max_long_partial_prefills": 5}, "which counts the long ones too"),
        ({"preemption": "swap", "num_swap_blocks": 0}, "raise num_swap_blocks above 0"),
        ({"strategy": "orca"}, "'static', 'prefill_first', 'mixed', 'chunked' or 'decode_first'"),
    ],
)
def test_impossible_settings_are_refused_with_the_reason(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        SchedulingConfig.model_validate(fields)


@pytest.mark.parametrize(("strategy", "needs"), [("static", 4096), ("prefill_first", 4096), ("mixed", 4096 + 31)])
def test_a_budget_below_the_context_is_refused_where_prompts_stay_whole(strategy: str, needs: int) -> None:
    with pytest.raises(ValueError, match=rf"must be at least {needs}, for the context of 4096 tokens; raise it"):
        make_engine(strategy=strategy, max_num_batched_tokens=4095)
    make_engine(strategy=strategy, max_num_batched_tokens=needs)
