"""What the proxy does when hand-offs fail and workers are lost."""

from __future__ import annotations

import pytest

from proxy.errors import ApiError, ErrorCode
from proxy.request.lifecycle import Phase
from rpc import worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect
from tests.unit.proxy.fake_worker import FakeWorker


def other(name: str) -> str:
    """Of two workers."""
    return name[:-1] + ("0" if name.endswith("1") else "1")


async def started(cluster: Cluster, role: str, of: int = 2) -> tuple[FakeWorker, worker_pb2.StartDecode]:
    """The one of so many workers that got the next request."""
    workers = [cluster.worker(f"{role}-{i}") for i in range(of)]
    await cluster.until(lambda: any(not worker.starts.empty() for worker in workers))
    worker = next(worker for worker in workers if not worker.starts.empty())
    return worker, worker.starts.get_nowait()


async def test_a_failed_hand_off_is_tried_once_more_and_then_computed_on_the_decode_worker(cluster: Cluster) -> None:
    request = await cluster.submit()
    prefill, decode = await cluster.starts()
    cluster.decode.handoff_failed(decode)
    assert (await cluster.prefill.next_abort()).attempt == 1
    prefill, decode = await cluster.starts()  # the only prefill worker, again
    assert (prefill.ticket.attempt, decode.source.ticket.attempt, decode.attempt) == (2, 2, 2)
    cluster.decode.handoff_failed(decode)
    decode = await cluster.decode.next_start()
    assert (decode.attempt, decode.HasField("source")) == (3, False)
    cluster.decode.say(decode, b"x", finish="length", computed_tokens=2)
    _, finished = await collect(request)
    assert finished.route.path == "local"
    assert cluster.metric("pdserve_local_prefill_total", reason="handoff_failed") == 1
    assert cluster.metric("pdserve_retries_total", stage="transfer") == 2
    assert cluster.metric("pdserve_fallback_recompute_total", reason="transfer_failed") == 2


async def test_another_prefill_worker_goes_before_the_one_that_failed(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=2)
    await cluster.submit()
    first, _ = await started(cluster, "prefill")
    cluster.decode.handoff_failed(await cluster.decode.next_start())
    second, _ = await started(cluster, "prefill")
    assert second.name == other(first.name)


async def test_another_decode_worker_is_tried_when_one_has_no_room(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=2)
    await cluster.submit()
    await cluster.prefill.next_start()
    first, start = await started(cluster, "decode")
    first.handoff_failed(start, "reserve_timeout")
    second, start = await started(cluster, "decode")
    assert second.name == other(first.name)
    assert start.source.incarnation == cluster.prefill.incarnation


async def test_a_lost_prefill_worker_is_replaced_by_another(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=2)
    request = await cluster.submit()
    first, _ = await started(cluster, "prefill")
    start = await cluster.decode.next_start()
    await first.stop()
    assert (await cluster.decode.next_abort()).attempt == 1
    start = await cluster.decode.next_start()
    assert start.source.incarnation == cluster.worker(other(first.name)).incarnation
    cluster.decode.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"
    assert cluster.metric("pdserve_retries_total", stage="prefill") == 1
    assert cluster.metric("pdserve_fallback_recompute_total", reason="prefill_lost") == 1


async def test_when_the_only_prefill_worker_is_lost_the_decode_worker_computes(cluster: Cluster) -> None:
    request = await cluster.submit()
    await cluster.starts()
    await cluster.prefill.stop()
    start = await cluster.decode.next_start()
    assert not start.HasField("source")
    cluster.decode.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"


async def test_a_prefill_worker_that_is_lost_after_the_first_token_does_not_matter(cluster: Cluster) -> None:
    request = await cluster.submit()
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"a")
    await anext(request.events)
    await cluster.prefill.stop()
    await cluster.until(lambda: not cluster.proxy.pool.prefill_links())
    cluster.decode.say(decode, b"b", index=1, finish="length")
    assert (await collect(request))[0] == "b"
    assert request.num_attempts == 1


async def test_a_decode_worker_lost_before_its_first_token_is_replaced(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=2)
    request = await cluster.submit()
    await cluster.prefill.next_start()
    first, _ = await started(cluster, "decode")
    await first.stop()
    assert (await cluster.prefill.next_abort()).attempt == 1
    prefill = await cluster.prefill.next_start()
    second, start = await started(cluster, "decode")
    assert second.name == other(first.name)
    assert prefill.ticket == start.source.ticket
    second.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"
    assert cluster.metric("pdserve_migrations_total") == 0


async def test_a_stream_goes_on_elsewhere_after_the_last_token_that_the_client_got(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=2)
    request = await cluster.submit("hi", stop=("bc!",), seed=3, max_tokens=9)
    await cluster.prefill.next_start()
    first, start = await started(cluster, "decode")
    first.say(start, b"abc", received_tokens=2)  # "bc" is held back: it could become a stop string
    assert (await anext(request.events)).text == "a"  # type: ignore[union-attr]
    await first.stop()
    prefill = await cluster.prefill.next_start()
    second, start = await started(cluster, "decode")
    assert bytes(start.request.output_ids) == b"abc"
    assert prefill.request == start.request
    assert start.request.sampling.max_tokens == 9  # of the whole completion
    second.say(start, b"de", index=3, finish="stop", received_tokens=5)
    text, finished = await collect(request)
    assert text == "bcd"  # the stop token, "e", has no text
    assert finished.usage.completion_tokens == 5
    assert finished.route.decode_worker == second.name
    assert cluster.metric("pdserve_migrations_total") == 1


async def test_a_stream_waits_for_its_only_decode_worker_to_come_back(cluster: Cluster) -> None:
    request = await cluster.submit()
    _, start = await cluster.starts()
    cluster.decode.say(start, b"a")
    await anext(request.events)
    await cluster.decode.restart()
    await cluster.until(lambda: request.phase is Phase.QUEUED)
    cluster.publish()
    start = await cluster.decode.next_start()
    assert (start.attempt, bytes(start.request.output_ids)) == (2, b"a")
    cluster.decode.say(start, b"b", index=1, finish="length")
    assert (await collect(request))[0] == "b"


@pytest.mark.parametrize(("said", "code"), [(b"", ErrorCode.UNAVAILABLE), (b"some", ErrorCode.ABORTED)])
async def test_a_decode_worker_that_does_not_come_back_ends_the_request(
    make_cluster: MakeCluster, said: bytes, code: ErrorCode
) -> None:
    cluster = await make_cluster(recovery_timeout_s=0.05)
    request = await cluster.submit()
    _, start = await cluster.starts()
    if said:
        cluster.decode.say(start, said)
        await anext(request.events)
    await cluster.decode.stop()
    with pytest.raises(ApiError, match=r"0\.05 s") as failure:
        await collect(request)
    assert failure.value.code is code


async def lose_decode_workers(cluster: Cluster, number: int, of: int = 4) -> list[FakeWorker]:
    """All held the request when their links broke; the membership does not know of it yet."""
    lost = []
    for _ in range(number):
        await cluster.prefill.next_start()
        worker, _ = await started(cluster, "decode", of=of)
        await worker.stop()
        lost.append(worker)
    return lost


async def test_a_request_survives_two_deaths(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=3)
    request = await cluster.submit()
    lost = await lose_decode_workers(cluster, 2, of=3)
    cluster.workers = [worker for worker in cluster.workers if worker not in lost]
    cluster.publish()
    third = next(worker for worker in cluster.workers if worker.name.startswith("decode"))
    start = await third.next_start()
    third.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"


async def test_a_request_that_was_at_three_workers_when_they_died_is_not_tried_again(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster(decode=4)
    request = await cluster.submit()
    lost = await lose_decode_workers(cluster, 3)
    await cluster.until(lambda: request.phase is Phase.QUEUED and request.num_attempts == 3)
    cluster.workers = [worker for worker in cluster.workers if worker not in lost]
    cluster.publish()
    with pytest.raises(ApiError, match="3 workers when they died") as failure:
        await collect(request)
    assert failure.value.code is ErrorCode.ABORTED
    assert all(worker.starts.empty() for worker in cluster.workers)  # it did not walk on meanwhile


async def test_a_link_that_comes_back_was_no_death(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=4)
    request = await cluster.submit()
    lost = await lose_decode_workers(cluster, 3)
    await cluster.until(lambda: request.phase is Phase.QUEUED and request.num_attempts == 3)
    await lost[2].open_port()  # the same incarnation: only its links had broken
    await cluster.prefill.next_start()
    fourth, start = await started(cluster, "decode", of=4)
    assert fourth not in lost
    fourth.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"


async def test_a_worker_that_came_back_and_died_later_died_without_the_request(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=3)
    request = await cluster.submit()
    await cluster.prefill.next_start()
    first, _ = await started(cluster, "decode", of=3)
    first.end_stream()
    await cluster.prefill.next_start()
    second, _ = await started(cluster, "decode", of=3)
    await cluster.until(lambda: len(cluster.proxy.pool.decode_links()) == 3)  # it was the link only
    await first.stop()
    await second.stop()
    cluster.workers = [worker for worker in cluster.workers if worker not in (first, second)]
    cluster.publish()
    third = next(worker for worker in cluster.workers if worker.name.startswith("decode"))
    start = await third.next_start()
    third.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"


async def test_workers_of_which_nobody_hears_any_more_count_as_dead(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=4, recovery_timeout_s=0.05)
    request = await cluster.submit()
    await lose_decode_workers(cluster, 3)
    with pytest.raises(ApiError, match="3 workers") as failure:
        await collect(request)
    assert failure.value.code is ErrorCode.ABORTED


async def test_a_request_whose_worker_is_often_out_of_reach_goes_on(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, max_attempts=1)
    request = await cluster.submit()
    for _ in range(5):
        start = await cluster.decode.next_start()
        cluster.decode.end_stream()
    start = await cluster.decode.next_start()
    cluster.decode.say(start, b"x", finish="length")
    assert (await collect(request))[0] == "x"


async def test_attempts_are_limited(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(max_attempts=2, max_handoff_attempts=9)
    request = await cluster.submit()
    for _ in range(2):
        _, start = await cluster.starts()
        cluster.decode.handoff_failed(start)
    with pytest.raises(ApiError, match="max_attempts") as failure:
        await collect(request)
    assert failure.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("code", [worker_pb2.FAILURE_DRAINING, worker_pb2.FAILURE_ROLE_CHANGED])
async def test_a_worker_that_does_not_admit_is_left_alone_until_it_says_otherwise(
    make_cluster: MakeCluster, code: worker_pb2.FailureCode
) -> None:
    cluster = await make_cluster(decode=2)
    request = await cluster.submit()
    await cluster.prefill.next_start()
    first, start = await started(cluster, "decode")
    first.failed(start, code)
    second, start = await started(cluster, "decode")
    assert second.name == other(first.name)
    second.say(start, b"x", finish="length")
    await collect(request)
    assert [link.worker for link in cluster.proxy.pool.decode_links()] == [second.name]
    first.report(admitting=True)
    await cluster.until(lambda: len(cluster.proxy.pool.decode_links()) == 2)


async def test_a_request_that_rests_between_two_moves_ends_with_its_client(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, decode=1)
    request = await cluster.submit()
    for number in range(1, 7):
        start = await cluster.decode.next_start()
        cluster.decode.failed(start, worker_pb2.FAILURE_DRAINING)
        await cluster.until(lambda: request.phase is Phase.QUEUED and request.num_attempts == number)  # noqa: B023
        if number < 6:
            cluster.decode.report(admitting=True)
    request.cancel()
    cluster.decode.answer(b"y")
    cluster.decode.report(admitting=True)
    await cluster.until(lambda: cluster.proxy.service.is_ready)
    assert (await collect(await cluster.submit()))[0] == "y"
    assert request.num_attempts == 6


async def test_a_stream_that_its_worker_hands_back_goes_on_elsewhere(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, decode=4)
    request = await cluster.submit()
    for index, text in enumerate((b"a", b"b", b"c")):  # more often than workers may die
        worker, start = await started(cluster, "decode", of=4)
        assert bytes(start.request.output_ids) == b"abc"[:index]
        worker.say(start, text, index=index)
        worker.failed(start, worker_pb2.FAILURE_DRAINING)
    worker, start = await started(cluster, "decode", of=4)
    worker.say(start, b"d", index=3, finish="length")
    assert (await collect(request))[0] == "abcd"
    assert cluster.metric("pdserve_migrations_total") == 3


async def test_prefill_workers_that_drain_are_no_failed_hand_offs(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=3, max_handoff_attempts=1)
    await cluster.submit()
    for _ in range(2):
        worker, start = await started(cluster, "prefill", of=3)
        worker.failed(start, worker_pb2.FAILURE_DRAINING)
        await cluster.decode.next_start()
    third, _ = await started(cluster, "prefill", of=3)
    assert (await cluster.decode.next_start()).source.incarnation == third.incarnation


async def test_a_prompt_that_a_prefill_worker_can_never_take_is_left_to_the_decode_worker(cluster: Cluster) -> None:
    await cluster.submit()
    prefill, _ = await cluster.starts()
    cluster.prefill.failed(prefill, worker_pb2.FAILURE_INVALID, "too long for me")
    assert not (await cluster.decode.next_start()).HasField("source")


async def test_a_request_that_two_workers_failed_on_does_not_walk_on(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster(prefill=0, decode=4)
    request = await cluster.submit()
    for _ in range(2):
        worker, start = await started(cluster, "decode", of=4)
        worker.failed(start, worker_pb2.FAILURE_INTERNAL, "no kernel")
    with pytest.raises(ApiError, match=r"2 workers failed on this request.*no kernel"):
        await collect(request)


async def test_a_grammar_that_cannot_go_on_is_the_request_s_fault_and_not_tried_again(cluster: Cluster) -> None:
    request = await cluster.submit()
    start = await cluster.decode.next_start()
    cluster.decode.failed(start, worker_pb2.FAILURE_UNSAMPLED, "the grammar cannot go on")
    with pytest.raises(ApiError, match="the grammar cannot go on") as failed:
        await collect(request)
    assert failed.value.code is ErrorCode.INVALID_ARGUMENT
    assert request.num_attempts == 1


async def test_a_worker_that_failed_inside_is_replaced(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(decode=2)
    await cluster.submit()
    first, start = await started(cluster, "decode")
    first.failed(start, worker_pb2.FAILURE_INTERNAL)
    second, _ = await started(cluster, "decode")
    assert second.name == other(first.name)


async def test_a_transport_that_failed_gives_way_to_the_pairs_next_one_before_the_pair_is_given_up(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster(prefill=2)
    for worker in (cluster.decode, cluster.worker("prefill-0"), cluster.worker("prefill-1")):
        worker.transports = ["nccl", "nixl"]
    cluster.publish()
    await cluster.until(lambda: all(list(m.transports) == ["nccl", "nixl"] for m in cluster.proxy.pool.members))
    await cluster.submit()
    paths = []
    for _ in range(2):
        start = await cluster.decode.next_start()
        paths.append((start.source.incarnation, start.source.transport))
        cluster.decode.handoff_failed(start)
    assert not (await cluster.decode.next_start()).HasField("source")
    (first, tried), (second, then) = paths
    assert (tried, then) == ("nccl", "nixl")
    assert first == second
