"""The KServe protocol with Triton's stream: by Triton's own client, and by calls that no client of it would make."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from proxy.errors import ApiError
from proxy.fronts.kserve_answer import OUTPUTS
from proxy.fronts.kserve_request import read_request
from rpc import kserve_pb2, kserve_pb2_grpc
from tests.unit.proxy.conftest import Cluster
from tests.unit.proxy.fake_worker import PATIENCE_S

ROOT = Path(__file__).parents[3]
DATATYPES = {
    bool: ("BOOL", "bool_contents"),
    int: ("INT64", "int64_contents"),
    float: ("FP64", "fp64_contents"),
    bytes: ("BYTES", "bytes_contents"),
}
CLIENT_PATIENCE_S = 60.0  # a new process, that imports numpy


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(CLIENT_PATIENCE_S):
        out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


def infer(**inputs: Any) -> kserve_pb2.ModelInferRequest:
    """Every text is BYTES, every whole number INT64, every other one FP64; lists have their length as shape."""
    request = kserve_pb2.ModelInferRequest(model_name="bytes")
    for name, value in inputs.items():
        values = value if isinstance(value, list) else [value]
        encoded = [each.encode() if isinstance(each, str) else each for each in values]
        datatype, field = DATATYPES[type(encoded[0])]
        request.inputs.add(name=name, datatype=datatype, shape=[len(values)], contents={field: encoded})
    return request


def raw(name: str, datatype: str, data: bytes, shape: list[int]) -> kserve_pb2.ModelInferRequest:
    request = infer(text_input="hi")
    request.inputs[0].ClearField("contents")
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.extend([struct.pack("<I", 2) + b"hi", data])
    return request


def read(request: kserve_pb2.ModelInferRequest) -> Any:
    return read_request(request, tuple(OUTPUTS))


@pytest.fixture
async def kserve(served: Cluster) -> AsyncIterator[Any]:
    served.decode.answer(b"sings", size=2)
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        yield kserve_pb2_grpc.GRPCInferenceServiceStub(channel)


async def test_tritons_client_works_unchanged(served: Cluster) -> None:
    served.decode.answer(b"sings", size=2)
    seen = json.loads(await output_of("-m", "tests.unit.proxy.triton_client", served.addresses.grpc))
    assert (seen["ready"], seen["other_ready"], seen["server"]) == ([True, True, True], False, "pdserve")
    assert {"text_input", "stream", "max_tokens"} <= set(seen["inputs"])
    assert (seen["text"], seen["num_output_tokens"], seen["id"]) == ("sings", 5, "mine")
    assert seen["outputs"] == ["text_output", "num_output_tokens"]
    assert seen["batch"] == ["sings", "sings"]
    assert seen["streamed"]["one"] == seen["streamed"]["two"] == ["si", "ng", "s", ""]
    (error,) = seen["streamed"]["errors"]
    assert error.startswith("temperature: must be from 0 to 2")
    assert seen["other_model"][0] == "StatusCode.NOT_FOUND"
    for name, words in (
        ("bad_value", "temperature: "),
        ("unknown_input", "bad_words: unknown field"),
        ("no_text", "text_input: this input is required"),
        ("stream_in_infer", "stream: true only with ModelStreamInfer"),
    ):
        assert seen[name][0] == "StatusCode.INVALID_ARGUMENT"
        assert seen[name][1].startswith(words)


async def test_the_protocols_numbers_are_tritons() -> None:
    """Of every message, each of our fields is the one of Triton's that has its number, type and name."""
    theirs = json.loads(await output_of("-c", THEIR_FIELDS))
    ours = {name: _fields(message) for name, message in kserve_pb2.DESCRIPTOR.message_types_by_name.items()}
    for name, fields in ours.items():
        assert all(theirs[name].get(number) == field for number, field in fields.items()), name


async def test_sampling_reaches_the_workers(served: Cluster) -> None:
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        stub: Any = kserve_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = infer(
            text_input="hi",
            max_tokens=7,
            temperature=0.5,
            stop_words=["x", "y"],
            random_seed=3,
            sampling_parameters='{"top_k": 4, "top_p": 0.75}',
        )
        request.parameters["min_p"].double_param = 0.25
        call = stub.ModelInfer(request, timeout=PATIENCE_S)
        _, start = await served.starts()
        sampling = start.request.sampling
        assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (7, 0.5, 3)
        assert (sampling.top_k, sampling.min_p, sampling.top_p) == (4, 0.25, 0.75)
        call.cancel()
        assert (await served.decode.next_abort()).request_id == start.request.request_id


async def test_a_stream_that_the_client_drops_frees_its_requests(served: Cluster) -> None:
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        stub: Any = kserve_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(timeout=PATIENCE_S)
        for _ in range(2):
            await call.write(infer(text_input="hi", stream=True))
        starts = {(await served.starts())[1].request.request_id for _ in range(2)}
        call.cancel()
        assert {(await served.decode.next_abort()).request_id for _ in range(2)} == starts


async def test_a_timeout_of_tritons_ends_the_request(served: Cluster, kserve: Any) -> None:
    served.decode.on_start = lambda start: None
    request = infer(text_input="hi")
    request.parameters["timeout"].int64_param = 200_000  # microseconds
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await kserve.ModelInfer(request, timeout=PATIENCE_S)
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert dict(ended.value.trailing_metadata())["x-error-code"] == "deadline_exceeded"


async def test_an_answer_tells_who_served_it(kserve: Any) -> None:
    call = kserve.ModelInfer(infer(text_input="hi", n=2), timeout=PATIENCE_S)
    response = await call
    assert response.raw_output_contents[2] == struct.pack("<2i", 0, 1)
    metadata = dict(await call.trailing_metadata())
    assert (metadata["x-decode-worker"], metadata["x-path"]) == ("decode-0", "p2p")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (infer(), "text_input"),
        (infer(text_input=b"\xff"), "text_input"),
        (infer(text_input="a", input_ids=[1]), "prompt"),
        (infer(text_input="a", max_tokens=[1, 2]), "max_tokens"),
        (infer(text_input="a", max_tokens=1.0), "max_tokens"),
        (infer(text_input="a", temperature=float("nan")), "temperature"),
        (infer(text_input="a", exclude_input_in_output=False), "exclude_input_in_output"),
        (infer(text_input="a", sampling_parameters="{"), "sampling_parameters"),
        (infer(text_input="a", sampling_parameters="[" * 100_000), "sampling_parameters"),
        (infer(text_input="a", sampling_parameters='"x"'), "sampling_parameters"),
        (infer(text_input="a", sampling_parameters='{"stop": "\\ud800"}'), None),
        (infer(text_input="a", sampling_parameters='{"prompt": "b"}'), "sampling_parameters"),
        (infer(text_input="a", max_tokens=3, sampling_parameters='{"max_tokens": 3}'), "max_tokens"),
        (infer(text_input="a", logprobs=1), "logprobs"),
        (raw("max_tokens", "INT32", b"\1\0\0", [1]), "max_tokens"),
        (raw("max_tokens", "INT32", b"\1\0\0\0", [2]), "max_tokens"),
        (raw("max_tokens", "INT32", b"\1\0\0\0", [-1, -1]), "max_tokens"),
        (raw("max_tokens", "BF16", b"\1\0", [1]), "max_tokens"),
        (raw("stop", "BYTES", b"\1\0\0", [1]), "stop"),
        (raw("stop", "BYTES", b"\xff\xff\xff\xff", [1]), "stop"),
        (raw("text_input", "BYTES", b"", [0]), "text_input"),
    ],
)
def test_what_is_wrong_is_refused_by_name(request_: kserve_pb2.ModelInferRequest, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        read(request_)
    assert refused.value.param == param


def test_raw_and_typed_values_do_not_mix() -> None:
    both = raw("max_tokens", "INT32", b"\1\0\0\0", [1])
    both.inputs[1].contents.int_contents.append(1)
    with pytest.raises(ApiError, match="twice"):
        read(both)
    del both.raw_input_contents[1:]
    with pytest.raises(ApiError, match="one for each of the 2 inputs"):
        read(both)


def _fields(message: Any) -> dict[str, list[Any]]:
    return {str(field.number): [field.name, field.type] for field in message.fields}


THEIR_FIELDS = """
import json
from tritonclient.grpc import service_pb2
print(json.dumps({
    name: {field.number: [field.name, field.type] for field in message.fields}
    for name, message in service_pb2.DESCRIPTOR.message_types_by_name.items()
}))
"""
