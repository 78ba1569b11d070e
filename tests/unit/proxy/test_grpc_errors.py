"""What a gRPC client learns from a refusal: the status, Google's error details, and the same as metadata."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from rpc import inference_pb2, inference_pb2_grpc
from tests.unit.proxy.conftest import Cluster, MakeCluster
from tests.unit.proxy.fake_worker import PATIENCE_S


async def refusal_of(served: Cluster, **fields: Any) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(served.addresses.grpc) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(
            inference_pb2.GenerateRequest(**{"text": "hi", **fields}), timeout=PATIENCE_S
        )
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in call:
                pass
    return failure.value


def detail(error: grpc.aio.AioRpcError, kind: Any) -> Any:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = kind()
    assert any(packed.Unpack(found) for packed in status.details), status
    return found


async def test_a_bad_value_is_a_bad_request_that_names_the_field(served: Cluster) -> None:
    error = await refusal_of(served, sampling={"top_p": 2})
    (violation,) = detail(error, error_details_pb2.BadRequest).field_violations
    assert violation.field == "top_p"
    assert violation.description == error.details()
    info = detail(error, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "pdserve")
    assert dict(error.trailing_metadata())["x-error-param"] == "top_p"


async def test_a_full_queue_says_when_to_come_again(make_cluster: MakeCluster) -> None:
    served = await make_cluster(fronts=True, max_queued_requests=1, dispatch_ahead=1)
    await served.submit()
    await served.starts()
    await served.submit()
    error = await refusal_of(served)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail(error, error_details_pb2.RetryInfo).retry_delay.seconds >= 1
    assert detail(error, error_details_pb2.ErrorInfo).reason == "QUEUE_FULL"


async def test_another_model_names_itself_and_no_field_of_metadata_is_broken(served: Cluster) -> None:
    error = await refusal_of(served, model="né\n")
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert detail(error, error_details_pb2.ErrorInfo).reason == "MODEL_NOT_FOUND"
