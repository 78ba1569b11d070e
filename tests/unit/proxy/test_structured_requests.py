"""Requests for structured output on their way: over HTTP and gRPC, to every worker, in every attempt."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx
import pytest
from llguidance import LLMatcher

from proxy.grammar.structured_output import GrammarKind, StructuredOutput
from rpc import inference_pb2, inference_pb2_grpc
from tests.unit.proxy.conftest import Cluster, MakeCluster, collect
from tests.unit.proxy.fake_worker import PATIENCE_S, FakeWorker

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
HI: list[Any] = [{"role": "user", "content": "hi"}]
AS_JSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


async def test_both_workers_and_every_attempt_get_the_same_grammar_and_the_accepted_tokens(
    make_cluster: MakeCluster,
) -> None:
    cluster = await make_cluster(decode=2)
    workers = [cluster.worker("decode-0"), cluster.worker("decode-1")]

    async def started() -> tuple[FakeWorker, Any]:
        await cluster.until(lambda: any(not worker.starts.empty() for worker in workers))
        worker = next(worker for worker in workers if not worker.starts.empty())
        return worker, worker.starts.get_nowait()

    output = StructuredOutput(GrammarKind.REGEX, "[0-9]{4}", "regex")
    request = await cluster.submit(structured_output=output)
    prefill = await cluster.prefill.next_start()
    first, start = await started()
    grammar = start.request.sampling.grammar
    assert prefill.request.sampling.grammar == grammar
    assert "[0-9]{4}" in grammar
    first.say(start, b"12", received_tokens=2)
    await anext(request.events)
    await first.stop()
    prefill = await cluster.prefill.next_start()
    second, start = await started()
    assert second is not first
    assert start.request.sampling.grammar == prefill.request.sampling.grammar == grammar
    assert bytes(start.request.output_ids) == b"12"
    second.say(start, b"34", index=2, finish="length", received_tokens=4)
    assert (await collect(request))[0] == "34"


async def test_the_openai_client_asks_for_a_schema_and_the_worker_gets_its_grammar(
    served: Cluster, client: Any
) -> None:
    served.decode.answer(b'{"name": "Ann"}')
    answer = await client.chat.completions.create(model="bytes", messages=HI, response_format=AS_JSON)
    assert json.loads(answer.choices[0].message.content or "") == {"name": "Ann"}
    serialised = (await served.prefill.next_start()).request.sampling.grammar
    assert json.loads(serialised)["grammars"][0]["json_schema"]["required"] == ["name"]
    assert LLMatcher.validate_grammar(serialised) == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": AS_JSON, "ignore_eos": True}, "ignore_eos"),
        ({"regex": "a", "min_tokens": 1}, "min_tokens"),
        ({"regex": "a", "guided_json": PERSON}, "guided_json"),
        ({"regex": "("}, "regex"),
        ({"grammar": "start: nothing"}, "grammar"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, None),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused_before_a_worker_hears_of_it(
    served: Cluster, http: httpx.AsyncClient, fields: dict[str, object], param: str | None
) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": HI, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param or param is None
    assert served.prefill.starts.empty()
    assert served.metric("pdserve_requests_in_flight") == 0
    assert served.metric("pdserve_queue_length") == 0


async def test_completions_take_structured_output_too(served: Cluster, http: httpx.AsyncClient) -> None:
    served.decode.answer(b"42")
    response = await http.post("/v1/completions", json={"prompt": "hi", "grammar": "root ::= [0-9]+"})
    assert response.json()["choices"][0]["text"] == "42"
    assert "start: /[0-9]/+" in (await served.prefill.next_start()).request.sampling.grammar


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("json_object", True, '"type":"object"'),
        ("json_schema", json.dumps(PERSON), '"required":["name"]'),
        ("regex", "[0-9]+", "/[0-9]+/"),
        ("grammar", 'start: "a"', 'start: "a"'),
        ("json_object", False, ""),
    ],
)
async def test_each_kind_may_be_asked_for_over_grpc(served: Cluster, kind: str, value: Any, expected: str) -> None:
    output = inference_pb2.StructuredOutput(**{kind: value})
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        inference: Any = inference_pb2_grpc.InferenceStub(channel)
        call = inference.Generate(inference_pb2.GenerateRequest(text="hi", structured_output=output))
        grammar = (await served.prefill.next_start()).request.sampling.grammar
        call.cancel()
    assert expected in grammar
    assert bool(grammar) == bool(expected)


async def test_a_bad_grammar_has_its_status_over_grpc(served: Cluster) -> None:
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        inference: Any = inference_pb2_grpc.InferenceStub(channel)
        for output in (inference_pb2.StructuredOutput(regex="("), inference_pb2.StructuredOutput(json_schema="[]")):
            request = inference_pb2.GenerateRequest(text="hi", structured_output=output)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                [event async for event in inference.Generate(request, timeout=PATIENCE_S)]
            assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            param = dict(failure.value.trailing_metadata())["x-error-param"]
            assert param == f"structured_output.{output.WhichOneof('kind')}"
