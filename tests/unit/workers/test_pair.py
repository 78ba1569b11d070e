from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.fake_runner import FakeRunner
from rpc import worker_pb2
from tests.engine_config import engine_config
from tests.unit.workers.pair import SHORT, FakeStream, Pair, token_request


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair() as pair:
        yield pair


@pytest.fixture
async def hasty_pair() -> AsyncIterator[Pair]:
    async with Pair(config=SHORT) as pair:
        yield pair


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 24, 100])
async def test_decode_speaks_every_token_from_kv_that_prefill_computed(pair: Pair, length: int) -> None:
    prompt = [n % 250 for n in range(length)]
    pair.start(token_request("r", prompt))
    assert await pair.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    origin = pair.to_d.tokens("r")[0].origin
    assert (origin.cached_tokens, origin.received_tokens, origin.computed_tokens) == (0, length, 0)
    assert pair.sample("pdserve_kv_transfer_tokens_total", mode="p2p") == length
    await pair.check_idle()


async def test_many_at_once_all_get_their_own_text(pair: Pair) -> None:
    prompts = {f"r{n}": [n] * (n + 1) for n in range(24)}
    for request_id, prompt in prompts.items():
        pair.start(token_request(request_id, prompt))
    for request_id, prompt in prompts.items():
        assert await pair.to_d.finished(request_id) == FakeRunner.expected(prompt, 6)
    await pair.check_idle()


async def test_without_a_source_decode_computes_the_prompt_itself(pair: Pair) -> None:
    pair.start_decode(token_request("r", [1, 2, 3]))
    assert await pair.to_d.finished("r") == FakeRunner.expected([1, 2, 3], 6)
    origin = pair.to_d.tokens("r")[0].origin
    assert (origin.received_tokens, origin.computed_tokens) == (0, 3)


async def test_only_what_decode_has_not_cached_is_transferred(pair: Pair) -> None:
    prompt = list(range(20))
    for request_id in ("first", "second"):
        pair.start(token_request(request_id, prompt))
        assert await pair.to_d.finished(request_id) == FakeRunner.expected(prompt, 6)
    origin = pair.to_d.tokens("second")[0].origin
    assert (origin.cached_tokens, origin.received_tokens) == (16, 4)
    await pair.check_idle()


async def test_a_first_token_that_ends_the_request_needs_no_kv(pair: Pair) -> None:
    pair.start(token_request("r", list(range(20)), max_tokens=1))
    assert await pair.to_d.finished("r") == FakeRunner.expected(range(20), 1)
    assert pair.sample("pdserve_kv_transfer_tokens_total", mode="p2p") == 0
    await pair.check_idle()


async def test_a_request_that_moved_goes_on_where_it_was(pair: Pair) -> None:
    prompt = list(range(9))
    output = FakeRunner.expected(prompt, 8)
    pair.start(token_request("r", prompt, max_tokens=8, output=output[:5]))
    assert await pair.to_d.finished("r") == output[5:]
    assert pair.to_d.tokens("r")[0].index == 5
    await pair.check_idle()


@pytest.mark.parametrize("fail_at", [0, 3, 6])
async def test_a_broken_transfer_is_reported_and_can_be_recomputed_or_tried_again(pair: Pair, fail_at: int) -> None:
    prompt = list(range(28))  # 7 blocks, a read for each
    for _ in range(fail_at):
        pair.d.transport.pass_next()
    pair.d.transport.fail_next()
    session = b"s" * 16
    pair.start(token_request("r", prompt), session=session)
    failed = await pair.to_d.event("handoff_failed")
    assert (failed.request_id, failed.attempt, failed.reason) == ("r", 1, "transfer_failed")
    assert pair.sample("pdserve_kv_transfer_failures_total", reason="transfer_failed", mode="p2p") == 1
    await pair.check_idle()
    pair.start(token_request("r", prompt), attempt=2, session=session)
    assert await pair.to_d.finished("r") == FakeRunner.expected(prompt, 6)
    await pair.check_idle()


async def test_an_abort_at_the_proxy_frees_both_sides(pair: Pair) -> None:
    pair.d.transport.stall()
    pair.start(token_request("r", list(range(40)), max_tokens=100))
    await pair.to_p.event("done")
    pair.decode.abort("r", 1, pair.to_d)
    pair.prefill.abort("r", 1, pair.to_p)
    pair.d.transport.resume()
    await pair.check_idle()
    assert pair.decode.num_open == pair.prefill.num_open == 0


async def test_the_end_of_a_stream_ends_its_requests_only(pair: Pair) -> None:
    other = FakeStream()
    request = token_request("r", [9, 9], max_tokens=50)
    pair.decode.start(worker_pb2.StartDecode(request=request, attempt=1, role_epoch=1), other)
    pair.start(token_request("r", [1, 2], max_tokens=2000))
    pair.decode.end_stream(pair.to_d)
    pair.prefill.end_stream(pair.to_p)
    assert await other.finished("r") == FakeRunner.expected([9, 9], 50)
    await pair.check_idle()


async def test_a_higher_attempt_ends_the_stalled_one(pair: Pair) -> None:
    prompt = list(range(20))
    session = b"s" * 16
    pair.d.transport.stall()
    pair.start(token_request("r", prompt), session=session)
    await pair.to_p.event("done")
    pair.d.transport.resume()
    pair.start(token_request("r", prompt), attempt=2, session=session)
    tokens = await pair.to_d.finished("r")
    assert tokens == FakeRunner.expected(prompt, 6)
    assert {t.attempt for t in pair.to_d.tokens("r")} == {2}
    await pair.check_idle()


async def test_an_attempt_told_twice_runs_once(pair: Pair) -> None:
    request = token_request("r", [1, 2, 3])
    ticket = worker_pb2.Ticket(session=b"s" * 16, attempt=1)
    for _ in range(2):
        pair.start_prefill(request, ticket)
        pair.start_decode(request, ticket)
    assert pair.prefill.num_open == pair.decode.num_open == 1
    assert await pair.to_d.finished("r") == FakeRunner.expected([1, 2, 3], 6)
    await pair.check_idle()
    await asyncio.wait_for(pair.prefill.wait_idle(), 5)


async def test_decode_told_before_prefill_waits_for_it(pair: Pair) -> None:
    request = token_request("r", list(range(10)))
    ticket = worker_pb2.Ticket(session=b"s" * 16, attempt=1)
    pair.start_decode(request, ticket)
    await asyncio.sleep(0.05)
    pair.start_prefill(request, ticket)
    assert await pair.to_d.finished("r") == FakeRunner.expected(range(10), 6)


async def test_a_prompt_that_prefill_was_never_told_of_fails_within_the_deadline(hasty_pair: Pair) -> None:
    hasty_pair.start_decode(token_request("r", [1, 2]), worker_pb2.Ticket(session=b"s" * 16, attempt=1))
    failed = await hasty_pair.to_d.event("handoff_failed")
    assert failed.reason == "lease_expired"
    await hasty_pair.check_idle()


async def test_a_prompt_that_nobody_opens_is_let_go_by_timer_alone(hasty_pair: Pair) -> None:
    hasty_pair.start_prefill(token_request("r", list(range(40))), worker_pb2.Ticket(session=b"s" * 16, attempt=1))
    await hasty_pair.to_p.event("done")
    await hasty_pair.p.check_idle()
    assert hasty_pair.prefill.num_open == 0


async def test_a_stalled_transfer_ends_at_its_deadline_and_its_slot_is_quarantined(hasty_pair: Pair) -> None:
    pair = hasty_pair
    pair.d.transport.stall()
    pair.start(token_request("r", list(range(20))))
    failed = await pair.to_d.event("handoff_failed")
    assert failed.reason == "transfer_timeout"
    assert pair.d.ring.counts().quarantined > 0
    pair.start_decode(token_request("other", [5, 6]))
    assert await pair.to_d.finished("other") == FakeRunner.expected([5, 6], 6)
    pair.d.transport.resume()
    await pair.check_idle()


async def test_no_room_on_decode_is_reported_after_the_reserve_deadline() -> None:
    engine = engine_config(block_size=4, num_blocks=16, prefill_chunk_size=8)
    async with Pair(engine, SHORT) as pair:
        blocks = await asyncio.wrap_future(pair.d.engine.call(lambda engine: engine.pool.allocate(12)))
        pair.start(token_request("r", list(range(40))))
        assert (await pair.to_d.event("handoff_failed")).reason == "reserve_timeout"
        await asyncio.wrap_future(pair.d.engine.call(lambda engine: engine.pool.release(blocks or [])))
        await pair.check_idle()


async def test_a_wrong_incarnation_is_refused(pair: Pair) -> None:
    command = worker_pb2.StartDecode(
        request=token_request("r", [1, 2]),
        attempt=1,
        role_epoch=1,
        source=worker_pb2.KVSource(
            ticket=worker_pb2.Ticket(session=b"s" * 16, attempt=1), address=pair.address, incarnation="p-0"
        ),
    )
    pair.decode.start(command, pair.to_d)
    assert (await pair.to_d.event("handoff_failed")).reason == "peer_unavailable"


async def test_a_peer_that_is_not_there_is_reported(hasty_pair: Pair) -> None:
    await hasty_pair.ends[0].server.stop(0)
    hasty_pair.start(token_request("r", list(range(20))))
    assert (await hasty_pair.to_d.event("handoff_failed")).reason in ("peer_unavailable", "handshake_timeout")
    await hasty_pair.check_idle()


async def test_the_requests_own_deadline_ends_it_on_both_sides(pair: Pair) -> None:
    pair.d.transport.stall()
    pair.start(token_request("r", list(range(20)), timeout_s=0.2))
    ends = await pair.to_d.wait_for(lambda: [e for n, e in pair.to_d.events if n in ("failed", "handoff_failed")])
    assert [getattr(end, "code", None) or end.reason for end in ends] in ([worker_pb2.FAILURE_DEADLINE], ["deadline"])
    pair.d.transport.resume()
    await pair.check_idle()


async def test_what_can_never_fit_and_another_role_epoch_are_refused_by_name(pair: Pair) -> None:
    pair.start_decode(token_request("big", [1] * 300))
    assert "KV cache holds 256" in (await pair.to_d.event("failed")).message
    stream = FakeStream()
    request = token_request("old", [1])
    pair.decode.start(worker_pb2.StartDecode(request=request, attempt=1, role_epoch=7), stream)
    assert (await stream.event("failed")).code == worker_pb2.FAILURE_ROLE_CHANGED


async def test_what_a_worker_gives_up_is_handed_back_to_the_proxy(pair: Pair) -> None:
    pair.d.transport.stall()
    pair.start(token_request("r", list(range(20))))
    await pair.to_p.event("done")
    assert pair.decode.give_up_all("the worker leaves") == pair.prefill.give_up_all("the worker leaves") == 1
    for stream in (pair.to_d, pair.to_p):
        failed = await stream.event("failed")
        assert (failed.request_id, failed.code) == ("r", worker_pb2.FAILURE_DRAINING)
    pair.d.transport.resume()
    await pair.check_idle()


async def test_a_stopped_engine_is_not_the_requests_fault(pair: Pair) -> None:
    await asyncio.to_thread(pair.d.engine.stop)
    pair.start_decode(token_request("r", [1, 2]))
    assert (await pair.to_d.event("failed")).code == worker_pb2.FAILURE_DRAINING


async def test_values_that_no_engine_takes_are_refused_before_they_are_queued(pair: Pair) -> None:
    pair.start_decode(token_request("late", [1, 2], timeout_s=float("nan")))
    assert "timeout_s" in (await pair.to_d.event("failed")).message
    pair.start_prefill(token_request("odd", [300]), worker_pb2.Ticket(session=b"s" * 16, attempt=1))
    failed = await pair.to_p.event("failed")
    assert (failed.code, "token id 300" in failed.message) == (worker_pb2.FAILURE_INVALID, True)
    await pair.check_idle()


async def test_a_wrong_address_does_not_stay_with_the_incarnation(hasty_pair: Pair) -> None:
    pair = hasty_pair
    right, pair.address = pair.address, "127.0.0.1:1"
    pair.start(token_request("wrong", [1, 2, 3]))
    assert (await pair.to_d.event("handoff_failed")).request_id == "wrong"
    pair.address = right
    pair.start(token_request("right", [4, 5, 6]))
    assert await pair.to_d.finished("right") == FakeRunner.expected([4, 5, 6], 6)


async def test_decode_goes_on_while_a_transfer_is_open(pair: Pair) -> None:
    pair.d.transport.stall()
    pair.start(token_request("transferring", list(range(40))))
    await pair.to_p.event("done")
    pair.start_decode(token_request("running", [3, 4], max_tokens=40))
    assert await pair.to_d.finished("running") == FakeRunner.expected([3, 4], 40)
    assert pair.to_d.tokens("transferring") == []
    pair.d.transport.resume()
    assert await pair.to_d.finished("transferring") == FakeRunner.expected(range(40), 6)
    await pair.check_idle()
