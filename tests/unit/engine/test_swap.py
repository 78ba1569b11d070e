"""Preemption to host memory and back: the same text, bounded memory, and the choice between it and computing again."""

from __future__ import annotations

import pytest

from engine.block_pool import IntegrityError
from engine.engine import Engine
from engine.fake_runner import FakeRunner
from engine.request import Request, RequestKind
from engine.sampled_token import SampledToken
from engine.swap_space import SwapSpace
from engine.swapping import Direction, PreemptionCosts
from tests.unit.engine.conftest import RequestFactory, make_engine, run_to_end

SMALL = {"num_blocks": 12, "decode_headroom_blocks": 0, "enable_prefix_caching": False}


def crowd(new_request: RequestFactory, engine: Engine) -> list[Request]:
    requests = [new_request([n] * 8, max_tokens=20) for n in range(4)]
    for request in requests:
        engine.add(request)
    return requests


def test_swapped_requests_go_on_where_they_were(new_request: RequestFactory) -> None:
    engine = make_engine(preemption="swap", **SMALL)
    requests = crowd(new_request, engine)
    computed = 0
    tokens: dict[str, list[int]] = {}
    swapped_blocks = {Direction.OUT: 0, Direction.IN: 0}
    while (result := engine.step()).num_tokens:
        engine.check_integrity()
        computed += result.num_tokens
        for output in result.tokens:
            tokens.setdefault(output.request_id, []).append(output.token_id)
        for swap in result.swaps:
            swapped_blocks[swap.direction] += len(swap.blocks)
    assert tokens == {r.request_id: FakeRunner.expected([n] * 8, 20) for n, r in enumerate(requests)}
    assert computed == 4 * (8 + 19)  # nothing was computed twice
    assert swapped_blocks[Direction.OUT] == swapped_blocks[Direction.IN] > 0
    assert engine.scheduler.swapping.space.num_free == engine.scheduler.swapping.space.num_blocks


def test_a_swap_reuses_what_the_prefix_cache_still_has(new_request: RequestFactory) -> None:
    engine = make_engine(preemption="swap", **(SMALL | {"enable_prefix_caching": True}))
    requests = crowd(new_request, engine)
    assert run_to_end(engine) == {r.request_id: FakeRunner.expected([n] * 8, 20) for n, r in enumerate(requests)}
    assert engine.scheduler.swapping.space.num_free == engine.scheduler.swapping.space.num_blocks


def test_without_host_memory_requests_are_computed_again(new_request: RequestFactory) -> None:
    engine = make_engine(preemption="auto", num_swap_blocks=2, **SMALL)
    requests = crowd(new_request, engine)
    kinds = set()
    tokens: dict[str, list[int]] = {}
    while (result := engine.step()).num_tokens:
        kinds |= {preemption.swapped for preemption in result.preempted}
        for output in result.tokens:
            tokens.setdefault(output.request_id, []).append(output.token_id)
    assert kinds == {False}
    assert tokens == {r.request_id: FakeRunner.expected([n] * 8, 20) for n, r in enumerate(requests)}


def test_an_aborted_request_gives_its_host_memory_back(new_request: RequestFactory) -> None:
    engine = make_engine(preemption="swap", **SMALL)
    crowd(new_request, engine)
    while not (preempted := engine.step().preempted):
        pass
    victim = preempted[0].request
    assert victim.swapped
    engine.abort(victim.request_id)
    engine.check_integrity()
    assert engine.scheduler.swapping.space.num_free == engine.scheduler.swapping.space.num_blocks
    assert victim.request_id not in run_to_end(engine)


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_a_preempted_request_that_came_from_a_peer_does_not_ask_it_again(
    preemption: str, new_request: RequestFactory
) -> None:
    source = make_engine()
    prompts = [[n] * 8 for n in range(4)]
    engine = make_engine(preemption=preemption, **SMALL)
    expected = {}
    for prompt in prompts:
        prefill = new_request(prompt, kind=RequestKind.PREFILL)
        source.add(prefill)
        first = source.step().tokens[0].token_id
        request = new_request(prompt, max_tokens=20, awaits_kv=True)
        engine.add(request)
        engine.step()
        engine.cache.write_blocks(request.blocks[:2], source.cache.as_bytes()[prefill.blocks[:2]])
        engine.accept(request.request_id, SampledToken(first))
        expected[request.request_id] = FakeRunner.expected(prompt, 20)
    reserved, num_preempted = 0, 0
    tokens: dict[str, int] = {}
    while (result := engine.step()).num_tokens:
        reserved += len(result.reserved)
        num_preempted += len(result.preempted)
        tokens |= {output.request_id: output.token_id for output in result.tokens}
    assert num_preempted > 0
    assert reserved == 0
    assert tokens == {request_id: text[-1] for request_id, text in expected.items()}  # a function of all before it


def test_the_cheaper_way_is_chosen_as_measured() -> None:
    costs = PreemptionCosts()
    assert costs.swap_is_cheaper(num_blocks=4, num_tokens=64)
    costs.computed(num_tokens=100, duration_s=0.1)
    costs.copied(num_blocks=10, duration_s=0.01)
    assert costs.swap_is_cheaper(num_blocks=4, num_tokens=64)
    assert not costs.swap_is_cheaper(num_blocks=4, num_tokens=2)
    for _ in range(40):
        costs.copied(num_blocks=1, duration_s=1.0)
    assert not costs.swap_is_cheaper(num_blocks=4, num_tokens=64)


def test_the_books_of_host_memory_add_up() -> None:
    space = SwapSpace(3)
    assert space.allocate(4) is None
    held = space.allocate(2)
    assert held is not None
    space.check_integrity(held)
    with pytest.raises(IntegrityError, match="host block"):
        space.check_integrity([])
    space.release(held)
    space.check_integrity([])
