"""What a sample holds of the requests that ran in its second."""

from __future__ import annotations

import asyncio

import pytest

from proxy.admission.slo import Slo
from proxy.dashboard import cluster_map
from proxy.dashboard.history import NUM_POINTS, History
from proxy.dashboard.sample import Kind, Pair, Sample
from proxy.dashboard.summary import Summary
from proxy.errors import ApiError
from proxy.request.kv_mode import KvMode
from proxy.request.priority import Priority
from rpc import worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect

PAIR = Pair("prefill-0", "decode-0", "nixl")


def history(cluster: Cluster) -> History:
    return cluster.proxy.service.history


def sample(cluster: Cluster) -> Sample:
    """Of all since the one before."""
    service = cluster.proxy.service
    service.history.take_sample(service.running, service.num_waiting)
    return service.history.last(1)[0]


async def test_a_request_is_seen_in_each_of_its_stages_once(cluster: Cluster) -> None:
    choice = await cluster.submit("hello")
    prefill, decode = await cluster.starts()
    sent = sample(cluster)
    assert len(sent.values[Kind.QUEUE]) == 1
    assert sent.gauges.num_running == 1
    assert cluster_map.handoffs(cluster.proxy.service.running, {}) == [
        {"prefill": "prefill-0", "decode": "decode-0", "transport": "nixl", "num_now": 1, "num_minute": 0}
    ]
    cluster.prefill.prefilled(prefill)
    await cluster.until(lambda: choice.phase == "transferring")
    cluster.decode.say(decode, b"abc", received_tokens=5)
    await cluster.until(lambda: bool(choice.progress.accepted))
    spoke = sample(cluster)
    assert [len(spoke.values[kind]) for kind in (Kind.QUEUE, Kind.TTFT, Kind.HANDOFF, Kind.TPOT)] == [0, 1, 1, 1]
    assert 0 < spoke.values[Kind.HANDOFF][0] <= spoke.values[Kind.TTFT][0]
    assert spoke.handoffs == {PAIR: 1}
    assert (spoke.grown.prompt_tokens, spoke.grown.generated_tokens) == (5, 3)
    cluster.decode.say(decode, b"d", index=3, finish="length")
    await collect(choice)
    ended = sample(cluster)
    assert [len(ended.values[kind]) for kind in (Kind.TTFT, Kind.HANDOFF, Kind.TPOT)] == [0, 0, 1]
    assert ended.counts == {"ok": 1}
    minute = Summary.of(history(cluster).last(60))
    assert (minute.handoffs, minute.grown.generated_tokens, minute.counts) == ({PAIR: 1}, 4, {"ok": 1})
    assert minute.quantiles[Kind.TTFT].num_values == 1
    assert cluster_map.handoffs([], minute.handoffs)[0]["num_minute"] == 1


async def test_tokens_that_come_before_the_prefill_workers_end_waited_for_no_handoff(cluster: Cluster) -> None:
    choice = await cluster.submit()
    _, decode = await cluster.starts()
    cluster.decode.say(decode, b"a", finish="length", received_tokens=2)
    await collect(choice)
    assert sample(cluster).values[Kind.HANDOFF] == (0.0,)


async def test_a_prompt_that_the_decode_worker_computes_is_no_handoff(cluster: Cluster) -> None:
    cluster.decode.answer(b"ab")
    await collect(await cluster.submit(kv_mode=KvMode.LOCAL))
    taken = sample(cluster)
    assert (taken.values[Kind.HANDOFF], taken.handoffs) == ((), {})
    assert len(taken.values[Kind.TTFT]) == 1


async def test_batch_requests_have_a_series_of_their_own(cluster: Cluster) -> None:
    cluster.decode.answer(b"ab")
    await collect(await cluster.submit(priority=Priority(is_batch=True)))
    taken = sample(cluster)
    assert (len(taken.values[Kind.TTFT]), len(taken.values[Kind.TTFT_BATCH])) == (0, 1)


async def test_goals_are_the_requests_own_or_else_the_configurations(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(slo_ttft_s=1000.0)
    cluster.decode.answer(b"ab")
    await collect(await cluster.submit())
    assert sample(cluster).counts == {"slo_ttft_asked": 1, "slo_ttft_attained": 1, "ok": 1}
    await collect(await cluster.submit(slo=Slo(ttft_s=1e-9, tpot_s=1000.0)))
    counts = sample(cluster).counts
    assert {what for what in counts if what.endswith("_attained")} == {"slo_tpot_attained"}
    assert {what for what in counts if what.endswith("_asked")} == {
        "slo_ttft_asked",
        "slo_tpot_asked",
        "slo_both_asked",
    }


async def test_one_that_fails_has_attained_nothing_and_is_told_among_the_errors(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(slo_tpot_s=1000.0)
    choice = await cluster.submit(request_id="mine")
    _, decode = await cluster.starts()
    cluster.decode.failed(decode, worker_pb2.FAILURE_INVALID, "too long for this worker")
    with pytest.raises(ApiError):
        await collect(choice)
    assert sample(cluster).counts == {"slo_tpot_asked": 1, "failed": 1}
    (error,) = history(cluster).errors.newest_first()
    assert (error.request_id, error.decode_worker, error.http_status) == ("mine", "decode-0", 400)
    assert error.message == "too long for this worker"


async def test_a_client_that_goes_away_is_no_error_and_a_refusal_is_one(cluster: Cluster) -> None:
    choice = await cluster.submit()
    choice.cancel()
    with pytest.raises(ApiError):
        await cluster.submit(request_id="no good")
    assert sample(cluster).counts == {"cancelled": 1, "refused": 1}
    assert [each.request_id for each in history(cluster).errors.newest_first()] == ["no good"]


async def test_only_the_newest_points_are_kept_and_whoever_has_some_gets_the_others(cluster: Cluster) -> None:
    for _ in range(NUM_POINTS + 5):
        sample(cluster)
    kept = history(cluster).after(-1)
    assert (len(kept), kept[-1].sample.number) == (NUM_POINTS, NUM_POINTS + 4)
    assert [each.sample.number for each in history(cluster).after(NUM_POINTS + 2)] == [NUM_POINTS + 3, NUM_POINTS + 4]
    assert history(cluster).after(NUM_POINTS + 4) == history(cluster).after(10**9) == []


async def test_a_sample_that_cannot_be_taken_costs_one_line_in_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a loop that goes on: its second look is right."""
    looks = iter([ValueError("broken")])

    def look() -> tuple[list[object], dict[str, int]]:
        for error in looks:
            raise error
        return [], {"interactive": 0}

    running = asyncio.create_task(history(cluster).run(look))  # type: ignore[arg-type]
    await cluster.until(lambda: history(cluster).newest == 0)
    running.cancel()
    assert "no sample for the dashboard" in caplog.text
