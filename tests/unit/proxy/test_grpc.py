"""The gRPC front over a real socket: Generate, Abort, ListModels, health and reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rpc import inference_pb2, inference_pb2_grpc, worker_pb2
from tests.unit.proxy.conftest import Cluster, MakeCluster
from tests.unit.proxy.fake_worker import PATIENCE_S, FakeWorker


@pytest.fixture
async def channel(served: Cluster) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        yield channel


@pytest.fixture
def inference(channel: grpc.aio.Channel) -> Any:
    return inference_pb2_grpc.InferenceStub(channel)


def generate(**fields: Any) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(**{"text": "hi", **fields})


async def test_a_generation_streams_from_started_to_finished(served: Cluster, inference: Any) -> None:
    def speak(start: worker_pb2.StartDecode) -> None:
        served.decode.say(start, b"he", received_tokens=2, prefill_cached_tokens=1)
        served.decode.say(start, b"llo", index=2, finish="length")

    served.decode.on_start = speak
    call = inference.Generate(generate(request_id="mine"), timeout=PATIENCE_S)
    started, first, second, finished = [event async for event in call]
    assert started.started == inference_pb2.Started(request_id="mine", model="bytes", prompt_tokens=2)
    assert (first.token.index, first.token.text, bytes(second.token.ids)) == (0, "he", b"llo")
    assert finished.finished.reason == "length"
    assert finished.finished.usage == inference_pb2.Usage(prompt_tokens=2, completion_tokens=5, cached_tokens=1)
    assert (finished.finished.path, finished.finished.prefill_worker) == ("p2p", "prefill-0")
    assert finished.finished.timings.total_s >= finished.finished.timings.time_to_first_token_s > 0
    metadata = dict(await call.trailing_metadata())
    assert (metadata["x-request-id"], metadata["x-decode-worker"], metadata["x-path"]) == ("mine", "decode-0", "p2p")


async def test_zero_is_a_value_and_unset_is_none(served: Cluster, inference: Any) -> None:
    calls = [
        inference.Generate(generate(sampling=sampling), timeout=PATIENCE_S)
        for sampling in (inference_pb2.Sampling(), inference_pb2.Sampling(temperature=0, seed=0, max_tokens=3))
    ]
    sent = sorted([(await served.starts())[1].request.sampling for _ in calls], key=lambda s: -s.temperature)
    assert (sent[0].temperature, sent[0].max_tokens) == (1.0, 510)
    assert (sent[1].temperature, sent[1].seed, sent[1].max_tokens) == (0.0, 0, 3)
    for call in calls:
        call.cancel()


async def test_the_clients_deadline_reaches_the_workers(served: Cluster, inference: Any) -> None:
    call = inference.Generate(generate(), timeout=2.0)
    prefill, _ = await served.starts()
    assert 1.0 < prefill.request.timeout_s < 2.1
    call.cancel()


@pytest.mark.parametrize("has_spoken", [False, True])
async def test_a_call_that_is_cancelled_frees_both_workers(served: Cluster, inference: Any, has_spoken: bool) -> None:
    call = inference.Generate(generate(), timeout=PATIENCE_S)
    _, start = await served.starts()
    if has_spoken:
        served.decode.say(start, b"a")
        await served.until(lambda: served.metric("pdserve_generation_tokens_total") == 1)
    call.cancel()
    assert (await served.decode.next_abort()).request_id == start.request.request_id
    if not has_spoken:
        await served.prefill.next_abort()
    await served.until(lambda: served.metric("pdserve_requests_in_flight") == 0)


async def test_abort_ends_a_running_call(served: Cluster, inference: Any) -> None:
    call = inference.Generate(generate(request_id="mine"), timeout=PATIENCE_S)
    await served.starts()
    assert (await inference.Abort(inference_pb2.AbortRequest(request_id="mine"))).found
    assert not (await inference.Abort(inference_pb2.AbortRequest(request_id="mine"))).found
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        [event async for event in call]
    assert failure.value.code() is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ({"text": "x" * 600}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ({"token_ids": inference_pb2.TokenIds(ids=[300])}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ({"chat": inference_pb2.ChatMessages()}, grpc.StatusCode.INVALID_ARGUMENT, "messages"),
        (
            {"chat": inference_pb2.ChatMessages(messages=[inference_pb2.ChatMessage(role="robot", content="x")])},
            grpc.StatusCode.INVALID_ARGUMENT,
            "messages.0.role",
        ),
        ({"sampling": inference_pb2.Sampling(temperature=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"sampling": inference_pb2.Sampling(top_p=float("nan"))}, grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
        ({"sampling": inference_pb2.Sampling(max_tokens=0)}, grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
        ({"stop": [""]}, grpc.StatusCode.INVALID_ARGUMENT, "stop"),
        ({"n": 0}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
        ({"n": 129}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
        ({"sampling": inference_pb2.Sampling(logprobs=21)}, grpc.StatusCode.INVALID_ARGUMENT, "logprobs"),
        ({"sampling": inference_pb2.Sampling(min_p=float("inf"))}, grpc.StatusCode.INVALID_ARGUMENT, "min_p"),
        (
            {"sampling": inference_pb2.Sampling(repetition_penalty=0)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "repetition_penalty",
        ),
        ({"sampling": inference_pb2.Sampling(logit_bias={300: 1})}, grpc.StatusCode.INVALID_ARGUMENT, "logit_bias"),
        ({"request_id": "two words"}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"model": "other"}, grpc.StatusCode.NOT_FOUND, "model"),
    ],
)
async def test_a_bad_request_has_a_status_and_names_its_field_and_the_next_works(
    served: Cluster, inference: Any, fields: dict[str, Any], code: grpc.StatusCode, param: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        [event async for event in inference.Generate(generate(**fields), timeout=PATIENCE_S)]
    assert failure.value.code() is code
    assert dict(failure.value.trailing_metadata())["x-error-param"] == param
    served.decode.answer(b"ok")
    call = inference.Generate(generate(), timeout=PATIENCE_S)
    assert [event async for event in call][-1].finished.reason == "length"


async def test_a_full_queue_is_resource_exhausted(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, max_queued_requests=1, dispatch_ahead=1)
    await cluster.submit()
    await cluster.starts()
    await cluster.submit()
    async with grpc.aio.insecure_channel(cluster.addresses.grpc) as channel:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            [event async for event in stub.Generate(generate())]
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(failure.value.trailing_metadata())["retry-after"] == "1"


async def test_a_client_that_does_not_read_costs_no_worker_and_is_told_when_it_reads(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster(fronts=True, max_buffered_tokens=200)
    small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    async with grpc.aio.insecure_channel(cluster.addresses.grpc, options=small_window) as channel:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        call = stub.Generate(generate(), timeout=PATIENCE_S)
        _, start = await cluster.starts()
        for index in range(0, 200_000, 100):
            cluster.decode.say(start, "🙂".encode() * 25, index=index)
        assert (await cluster.decode.next_abort()).request_id == start.request.request_id
        with pytest.raises(grpc.aio.AioRpcError, match="max_buffered_tokens") as failure:
            [event async for event in call]
        assert failure.value.code() is grpc.StatusCode.CANCELLED
    assert cluster.metric("pdserve_requests_in_flight") == 0


async def test_the_model_is_listed(inference: Any) -> None:
    (model,) = (await inference.ListModels(inference_pb2.ListModelsRequest())).models
    assert (model.name, model.max_model_len) == ("bytes", 512)


async def test_the_model_is_listed_with_the_context_that_its_workers_have(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(fronts=True, max_model_len={"decode-0": 100})
    async with grpc.aio.insecure_channel(cluster.addresses.grpc) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        (model,) = (await stub.ListModels(inference_pb2.ListModelsRequest())).models
    assert model.max_model_len == 100
    async with httpx.AsyncClient(base_url=f"http://{cluster.addresses.http}") as http:
        assert (await http.get("/v1/models/bytes")).json()["max_model_len"] == 100


async def test_health_follows_the_workers(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(prefill=0, decode=0, fronts=True)
    async with grpc.aio.insecure_channel(cluster.addresses.grpc) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="pdserve.v1.Inference"), timeout=PATIENCE_S)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        cluster.workers.append(FakeWorker("decode-0", worker_pb2.ROLE_DECODE))
        await cluster.decode.start()
        cluster.publish()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await cluster.decode.stop()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = {service.name for service in (await call.read()).list_services_response.service}
    assert {"pdserve.v1.Inference", "grpc.health.v1.Health"} <= names


async def test_every_sampling_field_reaches_the_workers(served: Cluster, inference: Any) -> None:
    sampling = inference_pb2.Sampling(
        min_p=0.25,
        presence_penalty=-1.5,
        frequency_penalty=0.5,
        repetition_penalty=1.25,
        logit_bias={5: -100, 6: 2.5},
        min_tokens=3,
        logprobs=0,
    )
    call = inference.Generate(generate(sampling=sampling), timeout=PATIENCE_S)
    told = (await served.decode.next_start()).request.sampling
    assert (told.presence_penalty, told.frequency_penalty, told.repetition_penalty) == (-1.5, 0.5, 1.25)
    assert (told.min_p, told.min_tokens, dict(told.logit_bias)) == (0.25, 3, {5: -100.0, 6: 2.5})
    assert told.HasField("num_logprobs")
    call.cancel()


async def test_each_choice_has_its_tokens_its_end_and_its_usage(served: Cluster, inference: Any) -> None:
    served.decode.answer(b"abc", size=2)
    call = inference.Generate(generate(n=2), timeout=PATIENCE_S)
    started, *events = [event async for event in call]
    assert started.started.prompt_tokens == 2
    texts = {0: "", 1: ""}
    for event in events:
        if event.WhichOneof("event") == "token":
            texts[event.token.choice] += event.token.text
    ends = [event.finished for event in events if event.WhichOneof("event") == "finished"]
    assert texts == {0: "abc", 1: "abc"}
    assert sorted(end.choice for end in ends) == [0, 1]
    assert [(end.usage.prompt_tokens, end.usage.completion_tokens) for end in ends] == [(2, 3), (2, 3)]


async def test_each_token_has_logprobs_with_exact_bytes(served: Cluster, inference: Any) -> None:
    served.decode.answer("é".encode(), size=1)
    call = inference.Generate(generate(sampling=inference_pb2.Sampling(logprobs=2)), timeout=PATIENCE_S)
    tokens = [event.token for event in [event async for event in call][1:-1]]
    assert [token.text for token in tokens] == ["", "é"]
    (first,), (second,) = (token.logprobs for token in tokens)
    assert first.chosen.token + second.chosen.token == "é".encode()
    assert [(top.id, top.logprob) for top in first.top] == [(0xC3, -0.5), (0xC4, -1.0)]
    assert first.chosen.logprob == -0.5


async def test_a_stop_string_is_part_of_the_text_when_asked_for(served: Cluster, inference: Any) -> None:
    served.decode.answer(b"oneENDtwo", size=2)
    for included in (False, True):
        call = inference.Generate(generate(stop=["END"], include_stop_str_in_output=included), timeout=PATIENCE_S)
        events = [event async for event in call]
        assert "".join(event.token.text for event in events) == ("oneEND" if included else "one")
        assert events[-1].finished.usage.completion_tokens == 6
