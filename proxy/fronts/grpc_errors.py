"""An error's way to a gRPC client: the call's status, with Google's error details for programs.

`BadRequest` names the field, `RetryInfo` says when to come again, `ErrorInfo.reason` is the word that HTTP clients find
in `code`. The same is in the trailing metadata, for clients that do not know these messages.
"""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from proxy.errors import ApiError, ErrorCode

DOMAIN = "pdserve"
Context = grpc.aio.ServicerContext[Any, Any]


async def abort(context: Context, error: ApiError, request_id: str) -> NoReturn:
    """Ends the call. Nothing that was wrong in itself is told back as metadata, which holds visible ASCII only."""
    status = rpc_status.to_status(_status(error))
    metadata = [("x-error-code", reason(error)), *status.trailing_metadata]
    if error.param is not None and error.param.isascii() and error.param.isprintable():
        metadata.append(("x-error-param", error.param))
    if error.retry_after_s is not None:
        metadata.append(("retry-after", str(error.retry_after_s)))
    if request_id and error.code is not ErrorCode.INVALID_ARGUMENT:  # there the id itself may be what is wrong
        metadata.append(("x-request-id", request_id))
    await context.abort(error.status.grpc, error.message, tuple(metadata))
    raise AssertionError("abort does not return")


def reason(error: ApiError) -> str:
    return error.reason or error.code.value


def _status(error: ApiError) -> status_pb2.Status:
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=reason(error).upper(), domain=DOMAIN)]
    if error.param is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.param, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromSeconds(error.retry_after_s)
        details.append(retry)
    code = error.status.grpc.value[0]
    return status_pb2.Status(code=code, message=error.message, details=[_packed(detail) for detail in details])


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
