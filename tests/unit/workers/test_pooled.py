"""Pooled mode on both workers: prompts go through the pool, and a pool that fails costs time and cache only."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.engine import StepResult
from engine.fake_runner import FakeRunner
from kv_transfer.config import TransferConfig
from kv_transfer.messages import BlockRef, FailureReason, Ticket
from rpc import worker_pb2
from tests.engine_config import engine_config
from tests.unit.workers.pair import Pair, token_request

PATIENT = TransferConfig(
    staging_slots=4,
    staging_slot_bytes=1024,
    max_quarantined_slots=3,
    lease_s=5.0,
    renew_every_s=1.0,
    transfer_timeout_s=1.0,
    pool_lookup_timeout_s=5.0,
    pool_read_timeout_s=5.0,
    pool_avoid_s=0.2,
    pool_offer_timeout_s=10.0,
)
HASTY = PATIENT.model_copy(
    update={"pool_lookup_timeout_s": 0.5, "pool_read_timeout_s": 0.5, "pool_offer_timeout_s": 0.8}
)
BLOCK, CHUNK = 4, 8


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=length)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Without a node so far."""
    async with Pair(config=PATIENT) as pair:
        yield pair


@pytest.fixture
async def hasty() -> AsyncIterator[Pair]:
    """One that is to see a node stop."""
    async with Pair(config=HASTY) as pair:
        yield pair


async def answer(
    pair: Pair, prompt: list[int], n: int = 6, request_id: str = "r", **decode: bool
) -> tuple[worker_pb2.PrefillProgress, worker_pb2.Origin]:
    """A whole pooled request, its text checked: what P did, and where D had the KV from."""
    request = token_request(request_id, prompt, n)
    done = await pair.prefill_into_pool(request)
    pair.decode_from_pool(request, **decode)
    assert await pair.to_d.finished(request_id) == FakeRunner.expected(prompt, n)
    return done, pair.to_d.tokens(request_id)[0].origin


@pytest.mark.parametrize(
    "length", [1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 1]
)
async def test_the_text_is_right_cold_and_warm(pair: Pair, length: int) -> None:
    pair.start_node()
    prompt = prompt_of(length)
    full, readable = length // BLOCK * BLOCK, (length - 1) // BLOCK * BLOCK
    done, origin = await answer(pair, prompt, request_id="cold")
    assert (done.cached_tokens, done.computed_tokens) == (0, full)
    assert (origin.cached_tokens, origin.received_tokens, origin.computed_tokens) == (0, readable, length - readable)
    done, origin = await answer(pair, prompt, request_id="warm")
    assert (origin.cached_tokens, origin.received_tokens, origin.computed_tokens) == (readable, 0, length - readable)
    assert done.cached_tokens == max(0, full - 1) // BLOCK * BLOCK
    await pair.check_idle()


async def test_a_second_prefill_worker_computes_the_last_block_only(pair: Pair) -> None:
    pair.start_node("pool-0")
    pair.start_node("pool-1")
    prompt = prompt_of(40)
    await pair.prefill_into_pool(token_request("first", prompt))
    await pair.start_prefill_end("p-2")
    done = await pair.prefill_into_pool(token_request("second", prompt))
    assert (done.cached_tokens, done.computed_tokens) == (40 - BLOCK, BLOCK)
    assert (
        pair.p.registry.get_sample_value(
            "pdserve_kv_transfer_tokens_total",
            {"model_name": "fake", "role": "decode", "worker": "w", "mode": "pooled"},
        )
        == 40 - BLOCK
    )
    await pair.check_idle()


async def test_decode_needs_no_prefill_worker_once_the_prompt_is_in_the_pool(pair: Pair) -> None:
    pair.start_node()
    prompt = prompt_of(33)
    request = token_request("r", prompt)
    await pair.prefill_into_pool(request)
    await pair.ends.pop().stop()
    pair.decode_from_pool(request)
    assert await pair.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    assert pair.to_d.tokens("r")[0].origin.received_tokens == 32
    await pair.d.check_idle()


async def test_a_prompt_that_moved_brings_its_tokens_along(pair: Pair) -> None:
    pair.start_node()
    prompt, told = prompt_of(11), FakeRunner.expected(prompt_of(11), 9)
    request = token_request("r", prompt, 9, output=told[:4])
    done = await pair.prefill_into_pool(request, attempt=2)
    assert done.computed_tokens == 12
    pair.decode_from_pool(request, attempt=2)
    assert await pair.to_d.finished("r") == told[4:]
    assert pair.to_d.tokens("r")[0].index == 4


@pytest.mark.parametrize("reads", [True, False])
async def test_with_write_back_the_next_turn_hits_what_was_generated(pair: Pair, reads: bool) -> None:
    """Also after a prompt that did not come from the pool."""
    end = pair.start_node()
    prompt = prompt_of(10)
    await answer(pair, prompt, 15, reads=reads, writes_back=True)
    turn = [*prompt, *FakeRunner.expected(prompt, 15), *prompt_of(5, seed=2)]
    await pair.check_idle()
    await pair.pool.writer.settle()
    assert end.node.store.counts().num_objects == 24 // BLOCK  # all that was computed
    await pair.start_prefill_end("p-2")
    done = await pair.prefill_into_pool(token_request("next", turn))
    assert done.cached_tokens == 24


async def test_an_answer_that_was_cut_short_is_written_back_too(pair: Pair) -> None:
    end = pair.start_node()
    request = token_request("r", prompt_of(10), 200)
    pair.decode_from_pool(request, writes_back=True)
    await pair.to_d.wait_for(lambda: len(pair.to_d.tokens("r")) > 10)
    pair.decode.abort("r", 1, pair.to_d)  # as for a stop string, which the proxy finds
    await wait(lambda: end.node.store.counts().num_objects >= 20 // BLOCK)
    await pair.check_idle()


async def test_without_write_back_only_the_prompt_is_in_the_pool(pair: Pair) -> None:
    end = pair.start_node()
    await answer(pair, prompt_of(10), 15)
    await pair.check_idle()
    assert end.node.store.counts().num_objects == 2


@pytest.mark.parametrize("call", ["handshake", "lookup", "commit"])
@pytest.mark.parametrize("fault", ["dead", "stopped"])
async def test_a_node_that_fails_makes_the_prefix_shorter_and_the_text_no_other(
    hasty: Pair, call: str, fault: str
) -> None:
    end = hasty.start_node()
    prompt = prompt_of(33)
    await hasty.prefill_into_pool(token_request("warm", prompt))

    def fail(name: str) -> None:
        if name == call:
            end.is_dead, end.before = fault == "dead", lambda call: None
            if fault == "stopped":
                end.stop()

    end.before = fail
    request = token_request("r", prompt)
    hasty.decode_from_pool(request)
    assert await hasty.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    assert hasty.to_d.tokens("r")[0].origin.received_tokens == 0
    silent = FailureReason.PEER_SILENT if fault == "stopped" else FailureReason.PEER_UNAVAILABLE
    assert hasty.pools.failures == [silent]
    hasty.decode_from_pool(token_request("other", prompt_of(33, seed=3)))  # nobody waits for it again
    async with asyncio.timeout(HASTY.pool_lookup_timeout_s):
        await hasty.to_d.finished("other")
    end.is_dead = False
    end.goes_on.set()
    await hasty.d.check_idle()


async def test_a_node_that_is_back_is_used_again(hasty: Pair) -> None:
    end = hasty.start_node()
    prompt = prompt_of(33)
    await hasty.prefill_into_pool(token_request("warm", prompt))
    end.stop()
    hasty.decode_from_pool(token_request("in vain", prompt_of(9, seed=100)))
    await hasty.to_d.finished("in vain")
    end.goes_on.set()
    num_calls = len(end.calls)

    async def is_asked_again() -> bool:
        request_id = f"other {len(hasty.to_d.events)}"
        hasty.decode_from_pool(token_request(request_id, prompt_of(9, seed=len(hasty.to_d.events))))
        await hasty.to_d.finished(request_id)
        return end.calls[num_calls:].count("lookup") > 1  # the probe's, and a request's

    async with asyncio.timeout(5):
        while not await is_asked_again():
            continue
    hasty.decode_from_pool(token_request("r", prompt))
    assert await hasty.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    assert hasty.to_d.tokens("r")[0].origin.received_tokens == 32


async def test_a_read_that_stalls_is_given_up_and_its_bytes_harm_nobody(hasty: Pair) -> None:
    hasty.start_node()
    prompt = prompt_of(33)
    await hasty.prefill_into_pool(token_request("warm", prompt))
    hasty.d.transport.stall()
    hasty.decode_from_pool(token_request("r", prompt))
    assert await hasty.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    assert hasty.to_d.tokens("r")[0].origin.received_tokens == 0
    hasty.d.transport.resume()
    hasty.decode_from_pool(token_request("next", prompt))
    assert await hasty.to_d.finished("next") == FakeRunner.expected(prompt, 6)
    await hasty.d.check_idle()


async def test_blocks_up_to_the_first_that_is_not_valid_count(pair: Pair) -> None:
    end = pair.start_node()
    prompt = prompt_of(33)
    await pair.prefill_into_pool(token_request("warm", prompt))
    commit = end.node.commit

    async def all_but_the_third(reader: Ticket, keys: Sequence[bytes], refs: Sequence[BlockRef]) -> list[bool]:
        valid = await commit(reader, keys, refs)
        return [*valid[:2], False, *valid[3:]]

    end.commit = all_but_the_third  # type: ignore[method-assign]
    pair.decode_from_pool(token_request("r", prompt))
    assert await pair.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    assert pair.to_d.tokens("r")[0].origin.received_tokens == 2 * BLOCK
    assert pair.pools.failures == [FailureReason.STALE]


@pytest.mark.parametrize(
    "other", [{"block_size": 8}, {"kv_dtype": "bfloat16"}, {"model_fingerprint": "other weights"}], ids=str
)
async def test_a_node_that_could_not_share_kv_is_asked_once(pair: Pair, other: dict[str, Any]) -> None:
    """Field report D37: a node that was started for another configuration gives nothing to this one."""
    compatibility = replace(pair.d.info.compatibility, **other)
    end = pair.pools.start_node(replace(pair.d.info, compatibility=compatibility))
    await answer(pair, prompt_of(20), request_id="first")
    await asyncio.sleep(PATIENT.pool_avoid_s)
    await answer(pair, prompt_of(20, seed=1), request_id="second")
    assert set(end.calls) <= {"handshake", "close"}
    assert end.calls.count("handshake") == 2  # one of each worker
    assert pair.pools.failures == [FailureReason.INCOMPATIBLE] * 2


async def test_when_one_of_two_nodes_is_gone_what_the_other_has_up_to_the_gap_counts(pair: Pair) -> None:
    pair.start_node("pool-0")
    gone = pair.start_node("pool-1")
    prompt = prompt_of(61)
    await pair.prefill_into_pool(token_request("warm", prompt))
    gone.is_dead = True
    pair.decode_from_pool(token_request("r", prompt))
    assert await pair.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    origin = pair.to_d.tokens("r")[0].origin
    assert 0 <= origin.received_tokens < 60
    assert origin.received_tokens + origin.computed_tokens == 61


@pytest.mark.parametrize("fault", ["dead", "stopped"])
async def test_prefill_says_done_though_no_node_takes_what_it_offers(hasty: Pair, fault: str) -> None:
    end = hasty.start_node()

    def fail(name: str) -> None:
        if name == "offer":
            end.is_dead = fault == "dead"
            if fault == "stopped":
                end.stop()

    end.before = fail
    started_at = asyncio.get_running_loop().time()
    prompt = prompt_of(33)
    request = token_request("r", prompt)
    done = await hasty.prefill_into_pool(request)
    assert done.computed_tokens == 32
    assert asyncio.get_running_loop().time() - started_at < HASTY.pool_offer_timeout_s + 0.5
    hasty.decode_from_pool(request)
    assert await hasty.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    end.goes_on.set()
    await hasty.check_idle()


async def test_a_pool_without_nodes_is_no_obstacle(pair: Pair) -> None:
    done, origin = await answer(pair, prompt_of(20))
    assert done.computed_tokens == 20
    assert origin.computed_tokens == 20
    await pair.check_idle()


async def test_cancelled_at_any_moment_a_request_leaves_nothing(pair: Pair) -> None:
    """Field report D06: in queues, lookups, reads, chunks and offers; then a prompt that needs all blocks fits."""
    ends = [pair.start_node(f"pool-{i}") for i in range(2)]
    seeded = random.Random(6)
    prompt = prompt_of(60)
    await pair.prefill_into_pool(token_request("warm", prompt))
    for i in range(100):
        ticket = worker_pb2.Ticket(session=bytes([i]) * 16, attempt=1)
        request = token_request(f"r{i}", [*prompt[: 4 * seeded.randint(0, 15)], *prompt_of(40, seed=i)])
        pair.prefill.start(
            worker_pb2.StartPrefill(request=request, ticket=ticket, role_epoch=1, pool=pair.pool_use()), pair.to_p
        )
        pair.decode_from_pool(request, writes_back=i % 3 == 0)
        for _ in range(seeded.randint(0, 40)):
            await asyncio.sleep(0)
        if i % 2:
            await asyncio.sleep(seeded.uniform(0, 0.01))
        pair.decode.abort(request.request_id, 1, pair.to_d)
        pair.prefill.abort(request.request_id, 1, pair.to_p)
    await pair.check_idle()
    for end in ends:
        end.node.store.check_integrity()
        assert end.node.store.counts().num_leased == 0
    whole = prompt_of(64 * BLOCK - 8, seed=1000)
    await answer(pair, whole, 4, request_id="whole")
    await pair.check_idle()


async def test_with_few_blocks_preempted_requests_come_back_without_the_pool_and_no_counter_goes_down() -> None:
    """Field reports D08 and D35: the pool has more and less of the prompts than what is still here when they return."""
    config = engine_config(block_size=BLOCK, num_blocks=24, prefill_chunk_size=CHUNK, preemption="recompute")
    async with Pair(engine=config, config=PATIENT) as pair:
        end = pair.start_node()
        prompts = {f"r{i}": [*prompt_of(16, seed=i % 2), *prompt_of(2, seed=i)] for i in range(6)}
        for request_id, prompt in prompts.items():
            await pair.prefill_into_pool(token_request(f"warm {request_id}", prompt))
        preempted, counters = 0, (0, 0)

        def watch(result: StepResult) -> None:
            nonlocal preempted, counters
            preempted += len(result.preempted)
            pool = pair.d.engine.engine.pool
            assert (pool.num_lookups, pool.num_hits) >= counters
            counters = (pool.num_lookups, pool.num_hits)

        pair.d.engine.subscribe(watch)
        for request_id, prompt in prompts.items():
            pair.decode_from_pool(token_request(request_id, prompt, 40))
        for request_id, prompt in prompts.items():
            assert await pair.to_d.finished(request_id) == FakeRunner.expected(prompt, 40)
        assert preempted > 0
        assert end.calls.count("commit") <= len(prompts) * 2  # P's and D's, once for each
        for request_id, prompt in prompts.items():
            origin = pair.to_d.tokens(request_id)[0].origin
            assert origin.cached_tokens + origin.received_tokens + origin.computed_tokens == len(prompt)
        await pair.check_idle()


async def test_32_prompts_at_once_that_hardly_fit_into_one_staging_slot_all_get_through() -> None:
    """Field report D09: most are longer than the slot, so they come and go in pieces, one after the other."""
    one_slot = PATIENT.model_copy(update={"staging_slots": 1, "max_quarantined_slots": 0})
    engine = engine_config(block_size=BLOCK, num_blocks=512, prefill_chunk_size=CHUNK)
    async with Pair(engine=engine, config=one_slot) as pair:
        pair.start_node(num_slots=512)
        prompts = {f"r{n}": prompt_of(1 + 2 * n, seed=n) for n in range(32)}
        assert max(len(prompt) for prompt in prompts.values()) > 3 * pair.d.ring.blocks_per_slot * BLOCK

        async def warm(request_id: str, prompt: list[int]) -> None:
            await pair.prefill_into_pool(token_request(request_id, prompt))
            pair.decode_from_pool(token_request(request_id, prompt))

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for request_id, prompt in prompts.items():
                group.create_task(warm(request_id, prompt))
        for request_id, prompt in prompts.items():
            assert await pair.to_d.finished(request_id) == FakeRunner.expected(prompt, 6)
            assert pair.to_d.tokens(request_id)[0].origin.received_tokens == (len(prompt) - 1) // BLOCK * BLOCK
        await pair.check_idle()


async def test_a_drained_prefill_worker_hands_pooled_prompts_back(pair: Pair) -> None:
    end = pair.start_node()
    end.stop()
    ticket = worker_pb2.Ticket(session=bytes(16), attempt=1)
    request = token_request("r", prompt_of(33))
    command = worker_pb2.StartPrefill(request=request, ticket=ticket, role_epoch=1, pool=pair.pool_use())
    pair.prefill.start(command, pair.to_p)
    assert pair.prefill.give_up_all("it leaves") == 1
    assert pair.to_p.done("r").code == worker_pb2.FAILURE_DRAINING
    end.goes_on.set()
    await pair.check_idle()


async def test_a_prompt_that_can_never_run_is_refused(pair: Pair) -> None:
    pair.start_node()
    failed = await pair.prefill_into_pool(token_request("r", [999] * 8))
    assert failed.code == worker_pb2.FAILURE_INVALID
    assert "vocabulary" in failed.message


async def wait(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  no event announces these conditions
            await asyncio.sleep(0.005)
