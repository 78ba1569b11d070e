"""A request's trace as the proxy makes it, what workers are told of it, and the line that the log gets."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest

from rpc import inference_pb2, inference_pb2_grpc, worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect, http_client
from tests.unit.proxy.fake_worker import PATIENCE_S
from tests.unit.telemetry.recorded_spans import RecordedSpans, parent_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def spans() -> RecordedSpans:
    return RecordedSpans()


@pytest.fixture
def decode_starts() -> list[worker_pb2.StartDecode]:
    return []


@pytest.fixture
async def traced(
    make_cluster: MakeCluster, spans: RecordedSpans, decode_starts: list[worker_pb2.StartDecode]
) -> Cluster:
    """Its decode worker answers, and notes what it was told."""
    cluster = await make_cluster(fronts=True, tracer=spans.tracer)

    def speak(start: worker_pb2.StartDecode) -> None:
        decode_starts.append(start)
        cluster.decode.say(start, b"hello", finish="length")

    cluster.decode.on_start = speak
    return cluster


async def test_traceparent_over_http_is_the_parent_and_workers_get_the_request_s_span(
    traced: Cluster, spans: RecordedSpans, decode_starts: list[worker_pb2.StartDecode]
) -> None:
    async with http_client(f"http://{traced.addresses.http}") as client:
        body = {"model": "bytes", "prompt": "hi", "max_tokens": 5}
        answer = await client.post("/v1/completions", json=body, headers={"traceparent": TRACEPARENT})
    assert answer.status_code == 200
    await traced.until(lambda: "proxy.request" in spans.names)
    check_tree(spans, await traced.prefill.next_start(), decode_starts[0])


async def test_traceparent_over_grpc_likewise(
    traced: Cluster, spans: RecordedSpans, decode_starts: list[worker_pb2.StartDecode]
) -> None:
    async with grpc.aio.insecure_channel(traced.addresses.grpc) as channel:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        asked = inference_pb2.GenerateRequest(text="hi")
        call = stub.Generate(asked, timeout=PATIENCE_S, metadata=(("traceparent", TRACEPARENT),))
        assert [event async for event in call][-1].finished.reason == "length"
    await traced.until(lambda: "proxy.request" in spans.names)
    check_tree(spans, await traced.prefill.next_start(), decode_starts[0])


def check_tree(spans: RecordedSpans, prefill: worker_pb2.StartPrefill, decode: worker_pb2.StartDecode) -> None:
    request = spans.named("proxy.request")
    assert parent_of(request) == (int(TRACE, 16), int(SPAN, 16))
    assert spans.names == ["proxy.queue", "proxy.route", "proxy.request"]
    for name in ("proxy.queue", "proxy.route"):
        assert parent_of(spans.named(name)) == (request.context.trace_id, request.context.span_id)
    routed = spans.named("proxy.route").attributes or {}
    assert (routed["pdserve.prefill_worker"], routed["pdserve.decode_worker"]) == ("prefill-0", "decode-0")
    told = f"00-{TRACE}-{request.context.span_id:016x}-01"
    assert (prefill.request.traceparent, decode.request.traceparent) == (told, told)


async def test_each_attempt_is_queued_and_routed_on_its_own(make_cluster: MakeCluster, spans: RecordedSpans) -> None:
    cluster = await make_cluster(tracer=spans.tracer)
    lifecycle = await cluster.submit()
    _, start = await cluster.starts()
    cluster.decode.handoff_failed(start)
    again = await cluster.decode.next_start()
    cluster.decode.say(again, b"a", finish="length")
    await collect(lifecycle)
    assert spans.names == ["proxy.queue", "proxy.route", "proxy.queue", "proxy.route", "proxy.request"]
    assert (spans.named("proxy.request").attributes or {})["pdserve.attempts"] == 2


async def test_a_request_that_fails_has_a_span_with_its_error(make_cluster: MakeCluster, spans: RecordedSpans) -> None:
    cluster = await make_cluster(tracer=spans.tracer)
    lifecycle = await cluster.submit()
    await cluster.starts()
    lifecycle.cancel("enough")
    assert "enough" in (spans.named("proxy.request").status.description or "")


async def test_a_request_that_is_refused_has_one_too(make_cluster: MakeCluster, spans: RecordedSpans) -> None:
    cluster = await make_cluster(tracer=spans.tracer)
    with pytest.raises(Exception, match="temperature"):
        await cluster.submit(temperature=-1.0)
    assert "temperature" in (spans.named("proxy.request").status.description or "")


async def test_without_tracing_workers_are_told_of_no_trace(cluster: Cluster) -> None:
    await cluster.submit(traceparent=TRACEPARENT)
    prefill, decode = await cluster.starts()
    assert (prefill.request.traceparent, decode.request.traceparent) == ("", "")


async def test_who_asks_the_same_again_in_another_trace_reads_along(cluster: Cluster) -> None:
    first = await cluster.submit(request_id="mine", traceparent=TRACEPARENT)
    assert await cluster.submit(request_id="mine") is first


async def test_the_log_has_one_line_with_all_stages(
    make_cluster: MakeCluster, spans: RecordedSpans, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy.request.outcomes")
    cluster = await make_cluster(tracer=spans.tracer)
    lifecycle = await cluster.submit(traceparent=TRACEPARENT)
    prefill, decode = await cluster.starts()
    computed = stage_times(prefill_queue=0.5, prefill_compute=1.5)
    request_id = prefill.request.request_id
    cluster.prefill.tell(done=worker_pb2.PrefillProgress(request_id=request_id, attempt=1, stages=computed))
    await cluster.until(lambda: "prefill.compute" in lifecycle.stages.durations_s)
    origin = worker_pb2.Origin(received_tokens=2, stages=stage_times(decode_queue=0.25, kv_transfer=0.125))
    tokens = worker_pb2.RequestTokens(
        request_id=decode.request.request_id, attempt=1, ids=b"ab", finish_reason="length", origin=origin
    )
    cluster.decode.tell(tokens=worker_pb2.StepTokens(requests=[tokens]))
    await collect(lifecycle)
    (line,) = caplog.records
    fields = line.__dict__["fields"]
    stages = {name: fields[f"{name}_s"] for name in ("prefill.queue", "prefill.compute", "decode.queue", "kv.transfer")}
    assert stages == {"prefill.queue": 0.5, "prefill.compute": 1.5, "decode.queue": 0.25, "kv.transfer": 0.125}
    assert fields["proxy.queue_s"] >= 0
    assert fields["total_s"] >= fields["ttft_s"] > 0
    assert (fields["outcome"], fields["path"], fields["trace_id"]) == ("ok", "p2p", TRACE)


def stage_times(**seconds: float) -> list[worker_pb2.StageTime]:
    return [
        worker_pb2.StageTime(name=name.replace("_", ".", 1), duration_s=duration_s)
        for name, duration_s in seconds.items()
    ]
