"""One request over scripted workers: what they are told, and what counts of what they say."""

from __future__ import annotations

import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.request.event_buffer import Route, TokenEvent, Usage
from proxy.request.kv_mode import KvMode
from proxy.request.lifecycle import Phase
from proxy.text.prompt import ChatMessage, ChatPrompt, TokenPrompt
from rpc import control_pb2, worker_pb2
from tests.unit.proxy.conftest import EOS, MAX_MODEL_LEN, Cluster, MakeCluster, collect


async def test_both_workers_are_told_at_once_and_the_tokens_stream(cluster: Cluster) -> None:
    request = await cluster.submit("hi", max_tokens=5, temperature=0.0, seed=7, timeout_s=60)
    prefill, decode = await cluster.starts()
    assert list(prefill.request.prompt_ids) == list(b"hi")
    assert prefill.request == decode.request
    assert prefill.request.sampling == worker_pb2.SamplingParams(
        max_tokens=5, temperature=0, top_p=1, top_k=0, seed=7, stop_token_ids=[EOS], repetition_penalty=1
    )
    assert 59 < prefill.request.timeout_s <= 60
    assert (prefill.ticket.attempt, decode.attempt, len(prefill.ticket.session)) == (1, 1, 16)
    assert decode.source.ticket == prefill.ticket
    assert (decode.source.address, decode.source.incarnation) == (cluster.prefill.address, cluster.prefill.incarnation)
    assert decode.source.transport == "nixl"
    assert (prefill.role_epoch, decode.role_epoch) == (1, 1)

    cluster.decode.say(decode, b"he", received_tokens=2)
    assert await anext(request.events) == TokenEvent(0, tuple(b"he"), "he")
    assert request.route == Route(KvMode.P2P, "decode-0", "prefill-0")
    cluster.decode.say(decode, b"llo", index=2, finish="length")
    text, finished = await collect(request)
    assert (text, finished.reason) == ("llo", "length")
    assert finished.usage == Usage(prompt_tokens=2, completion_tokens=5, cached_tokens=0)
    assert request.phase is Phase.FINISHED


async def test_the_phases_follow_the_workers(cluster: Cluster) -> None:
    request = await cluster.submit()
    phases = [request.phase]
    prefill, decode = await cluster.starts()
    assert [*phases, request.phase] == [Phase.QUEUED, Phase.PREFILLING]
    cluster.prefill.prefilled(prefill)
    await cluster.until(lambda: request.phase is Phase.TRANSFERRING)
    cluster.decode.say(decode, b"a")
    await cluster.until(lambda: request.phase is Phase.DECODING)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (TokenPrompt((104, 105)), b"hi"),
        (ChatPrompt((ChatMessage("system", "s"), ChatMessage("user", "u"))), b"system: s\nuser: u\nassistant: "),
    ],
)
async def test_a_prompt_may_be_token_ids_or_a_chat(
    cluster: Cluster, prompt: TokenPrompt | ChatPrompt, text: bytes
) -> None:
    await cluster.submit(prompt)
    prefill, _ = await cluster.starts()
    assert bytes(prefill.request.prompt_ids) == text


async def test_without_max_tokens_the_context_is_the_limit(cluster: Cluster) -> None:
    await cluster.submit("abc")
    prefill, _ = await cluster.starts()
    assert prefill.request.sampling.max_tokens == MAX_MODEL_LEN - 3


async def test_the_context_is_what_the_worker_with_the_least_room_allows(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(max_model_len={"prefill-0": 300, "decode-0": 100})
    await cluster.submit("abc")
    prefill, _ = await cluster.starts()
    assert prefill.request.sampling.max_tokens == 100 - 3
    with pytest.raises(ApiError, match="the context is 100 tokens"):
        await cluster.submit("x" * 100)
    with pytest.raises(ApiError, match="the context holds 97 more"):
        await cluster.submit("abc", max_tokens=98)


async def test_the_context_grows_when_the_worker_with_the_least_room_leaves(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=2, max_model_len={"decode-1": 100})
    service = cluster.proxy.service
    assert service.max_model_len == 100
    cluster.worker("decode-1").end_stream()  # a link that breaks is not a worker that leaves
    await cluster.until(lambda: len(cluster.worker("decode-1").hellos) == 2)
    assert service.max_model_len == 100
    cluster.worker("decode-1").state = control_pb2.WORKER_DRAINING
    cluster.publish()
    await cluster.until(lambda: service.max_model_len == MAX_MODEL_LEN)


async def test_a_seed_is_drawn_once_for_all_attempts(cluster: Cluster) -> None:
    await cluster.submit()
    _, first = await cluster.starts()
    cluster.decode.handoff_failed(first)
    _, second = await cluster.starts()
    assert first.request.sampling.seed == second.request.sampling.seed != 0


async def test_cached_tokens_are_those_that_no_worker_had_to_compute(cluster: Cluster) -> None:
    request = await cluster.submit("eight by")
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"x", finish="length", cached_tokens=2, received_tokens=6, prefill_cached_tokens=4)
    _, finished = await collect(request)
    assert finished.usage.cached_tokens == 6


async def test_late_repeated_and_foreign_tokens_are_ignored(cluster: Cluster) -> None:
    request = await cluster.submit(max_tokens=4)
    _, first = await cluster.starts()
    cluster.decode.handoff_failed(first)
    _, second = await cluster.starts()
    assert second.attempt == 2
    cluster.decode.say(first, b"OLD")  # an attempt that is over
    cluster.decode.say(second, b"ab")
    cluster.decode.say(second, b"ab")  # twice
    cluster.decode.say(second, b"b", index=1)
    cluster.decode.say(first, b"OLD", index=2)
    cluster.decode.say(second, b"cd", index=2, finish="length")
    assert (await collect(request))[0] == "abcd"


async def test_tokens_that_leave_a_gap_are_not_believed(cluster: Cluster) -> None:
    request = await cluster.submit(max_tokens=3)
    _, first = await cluster.starts()
    cluster.decode.say(first, b"a")
    cluster.decode.say(first, b"c", index=2)
    assert (await cluster.decode.next_abort()).attempt == 1
    _, second = await cluster.starts()
    assert bytes(second.request.output_ids) == b"a"
    cluster.decode.say(second, b"bc", index=1, finish="length")
    assert (await collect(request))[0] == "abc"


async def test_a_finish_reason_that_nobody_knows_is_never_passed_on(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(max_attempts=1)
    request = await cluster.submit()
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"half", finish="abort")
    with pytest.raises(ApiError) as failure:
        await collect(request)
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_stop_string_ends_the_request_on_the_worker_and_usage_counts_through_it(cluster: Cluster) -> None:
    request = await cluster.submit(stop=("END",))
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"some E")
    cluster.decode.say(decode, b"ND more", index=6)
    text, finished = await collect(request)
    assert (text, finished.reason) == ("some ", "stop")
    assert finished.usage.completion_tokens == len("some END")
    assert (await cluster.decode.next_abort()).request_id == decode.request.request_id


async def test_a_first_token_that_ends_the_request_frees_the_prefill_worker(cluster: Cluster) -> None:
    request = await cluster.submit(max_tokens=1)
    prefill, decode = await cluster.starts()
    cluster.decode.say(decode, b"x", finish="length")
    assert (await collect(request))[1].usage.completion_tokens == 1
    abort = await cluster.prefill.next_abort()
    assert (abort.request_id, abort.attempt) == (prefill.request.request_id, 1)


async def test_without_a_prefill_worker_the_decode_worker_computes_the_prompt(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0)
    request = await cluster.submit()
    start = await cluster.decode.next_start()
    assert not start.HasField("source")
    cluster.decode.say(start, b"x", finish="length", computed_tokens=2)
    _, finished = await collect(request)
    assert finished.route == Route(KvMode.LOCAL, "decode-0", None)
    assert cluster.metric("pdserve_local_prefill_total", reason="no_prefill_worker") == 1


async def test_a_mixed_worker_serves_alone(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, decode=0, mixed=1)
    request = await cluster.submit()
    start = await cluster.worker("mixed-0").next_start()
    cluster.worker("mixed-0").say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"


async def test_a_pair_without_a_common_transport_is_not_made(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster()
    cluster.prefill.transports = ["nccl"]
    cluster.publish()
    await cluster.until(lambda: any(list(m.transports) == ["nccl"] for m in cluster.proxy.pool.members))
    await cluster.submit()
    assert not (await cluster.decode.next_start()).HasField("source")


async def test_a_request_that_passes_its_deadline_ends_everywhere(cluster: Cluster) -> None:
    request = await cluster.submit(timeout_s=0.05)
    await cluster.starts()
    with pytest.raises(ApiError, match=r"0\.05 s") as failure:
        await collect(request)
    assert failure.value.code is ErrorCode.DEADLINE_EXCEEDED
    await cluster.prefill.next_abort()
    await cluster.decode.next_abort()


async def test_what_a_worker_can_never_run_is_the_clients_error(cluster: Cluster) -> None:
    request = await cluster.submit()
    _, decode = await cluster.starts()
    cluster.decode.failed(decode, worker_pb2.FAILURE_INVALID, "its KV cache holds 8 tokens")
    with pytest.raises(ApiError, match="holds 8 tokens") as failure:
        await collect(request)
    assert failure.value.code is ErrorCode.INVALID_ARGUMENT
    await cluster.prefill.next_abort()


async def test_metrics_tell_what_happened(cluster: Cluster) -> None:
    request = await cluster.submit("hi")
    assert cluster.metric("pdserve_requests_in_flight") == 1
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"a")
    cluster.decode.say(decode, b"bc", index=1, finish="stop")
    await collect(request)
    assert cluster.metric("pdserve_requests_total", code="ok", path="p2p", priority="interactive") == 1
    assert cluster.metric("pdserve_prompt_tokens_total") == 2
    assert cluster.metric("pdserve_generation_tokens_total") == 3
    assert cluster.metric("pdserve_time_to_first_token_seconds_count") == 1
    assert cluster.metric("pdserve_inter_token_latency_seconds_count") == 1
    assert cluster.metric("pdserve_requests_in_flight", model_name="bytes", role="proxy") == 0
