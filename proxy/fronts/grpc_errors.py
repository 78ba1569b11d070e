"""An error's way to a gRPC client: the call's status, and in its trailing metadata what programs read."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from proxy.errors import ApiError, ErrorCode

Context = grpc.aio.ServicerContext[Any, Any]


async def abort(context: Context, error: ApiError, request_id: str) -> NoReturn:
    metadata = [("x-error-code", error.reason or error.code.value)]
    if error.param is not None:
        metadata.append(("x-error-param", error.param))
    if error.retry_after_s is not None:
        metadata.append(("retry-after", str(error.retry_after_s)))
    if error.code is not ErrorCode.INVALID_ARGUMENT:  # there the id itself may be what is wrong
        metadata.append(("x-request-id", request_id))
    await context.abort(error.status.grpc, error.message, tuple(metadata))
    raise AssertionError("abort does not return")
