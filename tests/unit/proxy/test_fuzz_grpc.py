"""Made-up messages for every method that clients may call: each is answered or refused by name, and the next is right.

Seeded: the same messages each time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpc import inference_pb2, kserve_pb2
from tests.unit.proxy.conftest import MakeCluster

SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["Inference"],
    kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"],
)
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # more choices than may wait
    grpc.StatusCode.DEADLINE_EXCEEDED,  # Triton's `timeout` may be a microsecond
}
WORDS = ("bytes", "hi", "text_input", "stream", "max_tokens", "BYTES", "INT32", "BOOL", "FP64", "user", "1", "{}")
PATIENCE_S = 60.0
NUMBERS = {
    FieldDescriptor.TYPE_INT32: st.sampled_from([0, 1, -1, 5, 2**31 - 1, -(2**31)]),
    FieldDescriptor.TYPE_INT64: st.sampled_from([0, 1, -1, 5, 2**63 - 1, -(2**63)]),
    FieldDescriptor.TYPE_UINT32: st.sampled_from([0, 1, 5, 97, 257, 2**32 - 1]),
    FieldDescriptor.TYPE_UINT64: st.sampled_from([0, 1, 5, 2**64 - 1]),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32) | st.sampled_from([0.0, 0.5, 1.0]),
    FieldDescriptor.TYPE_DOUBLE: st.floats() | st.sampled_from([0.0, 0.5, 1.0]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.sampled_from(WORDS) | st.text(max_size=6),
    FieldDescriptor.TYPE_BYTES: st.sampled_from([b"", b"hi", b"\2\0\0\0hi", b"\1\0\0\0"]) | st.binary(max_size=9),
}


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is None:
        return NUMBERS[field.type]
    return messages(field.message_type)


@st.composite
def messages(draw: Any, descriptor: Any) -> Any:
    """Any message, each of its fields set or not; lists and maps are short."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            name, drawn = draw(values(key)), draw(values(value))
            if value.message_type is None:
                getattr(message, field.name)[name] = drawn
            else:
                getattr(message, field.name)[name].CopyFrom(drawn)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(values(field), max_size=3)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(values(field)))
        else:
            setattr(message, field.name, draw(values(field)))
    return message


calls = st.sampled_from(sorted(METHODS)).flatmap(
    lambda path: st.tuples(st.just(path), messages(METHODS[path].input_type).map(lambda m: m.SerializeToString()))
)
seeded = settings(
    max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
async def channel(make_cluster: MakeCluster) -> AsyncIterator[grpc.aio.Channel]:
    """Making up messages holds up the loop that the scripted workers live in: they may be silent for long."""
    served = await make_cluster(fronts=True, silent_s=600.0)
    served.decode.answer(b"sings", size=1)
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        yield channel


async def status_of(channel: grpc.aio.Channel, path: str, request: bytes) -> tuple[grpc.StatusCode, str]:
    """Any method can be called like one of streams."""
    method: Any = channel.stream_stream(path)
    call = method(iter([request]), timeout=PATIENCE_S)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def check_canary(channel: grpc.aio.Channel) -> None:
    generate = channel.unary_stream(
        "/pdserve.v1.Inference/Generate",
        request_serializer=inference_pb2.GenerateRequest.SerializeToString,
        response_deserializer=inference_pb2.GenerateResponse.FromString,
    )
    request = inference_pb2.GenerateRequest(text="the canary")
    spoken = [event.token.text async for event in generate(request, timeout=PATIENCE_S) if event.HasField("token")]
    assert "".join(spoken) == "sings"


@seeded
@given(call=calls)
async def test_a_made_up_message_is_answered_or_refused(channel: grpc.aio.Channel, call: tuple[str, bytes]) -> None:
    path, message = call
    code, details = await status_of(channel, path, message)
    assert code is grpc.StatusCode.OK or code in REFUSALS, (path, code, details)
    await check_canary(channel)


@seeded
@given(path=st.sampled_from(sorted(METHODS)), junk=st.binary(max_size=64))
async def test_bytes_that_are_no_message_end_the_call_and_nothing_else(
    channel: grpc.aio.Channel, path: str, junk: bytes
) -> None:
    code, _ = await status_of(channel, path, junk)
    assert code is not grpc.StatusCode.UNAVAILABLE  # the server still stands
    await check_canary(channel)


async def test_a_message_over_the_limit_is_refused_before_it_is_read(make_cluster: MakeCluster) -> None:
    served = await make_cluster(fronts=True, max_body_bytes=4096)
    served.decode.answer(b"sings")
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        for path in ("/pdserve.v1.Inference/Generate", "/inference.GRPCInferenceService/ModelStreamInfer"):
            assert (await status_of(channel, path, bytes(5000)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await check_canary(channel)
