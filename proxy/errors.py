"""What clients are told when a request fails, and the one table that maps it to gRPC and HTTP.

Everything in the proxy raises `ApiError`; only the two fronts turn it into a status, with `STATUS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import grpc


class ErrorCode(StrEnum):
    INVALID_ARGUMENT = "invalid_argument"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    ABORTED = "aborted"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Status:
    grpc: grpc.StatusCode
    http: int
    type: str  # of OpenAI's error object


STATUS = {
    ErrorCode.INVALID_ARGUMENT: Status(grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"),
    ErrorCode.UNAUTHENTICATED: Status(grpc.StatusCode.UNAUTHENTICATED, 401, "invalid_request_error"),
    ErrorCode.PERMISSION_DENIED: Status(grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error"),
    ErrorCode.NOT_FOUND: Status(grpc.StatusCode.NOT_FOUND, 404, "invalid_request_error"),
    ErrorCode.ALREADY_EXISTS: Status(grpc.StatusCode.ALREADY_EXISTS, 409, "invalid_request_error"),
    ErrorCode.TOO_LARGE: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 413, "invalid_request_error"),
    ErrorCode.TOO_SLOW: Status(grpc.StatusCode.DEADLINE_EXCEEDED, 408, "invalid_request_error"),
    ErrorCode.RESOURCE_EXHAUSTED: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
    ErrorCode.CANCELLED: Status(grpc.StatusCode.CANCELLED, 499, "request_cancelled"),
    ErrorCode.UNAVAILABLE: Status(grpc.StatusCode.UNAVAILABLE, 503, "service_unavailable_error"),
    ErrorCode.DEADLINE_EXCEEDED: Status(grpc.StatusCode.DEADLINE_EXCEEDED, 504, "timeout_error"),
    ErrorCode.ABORTED: Status(grpc.StatusCode.ABORTED, 502, "server_error"),
    ErrorCode.INTERNAL: Status(grpc.StatusCode.INTERNAL, 500, "server_error"),
}


class ApiError(Exception):
    """A request that gets no answer. The message is for the client: it names the field and the limit, no internals."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        param: str | None = None,
        reason: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param  # the field that is wrong
        self.reason = reason  # a word for programs, as in OpenAI's `code`
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> Status:
        return STATUS[self.code]


def invalid(param: str, message: str, reason: str | None = None) -> ApiError:
    """A bad value in the field `param`; the message starts with its name."""
    return ApiError(ErrorCode.INVALID_ARGUMENT, f"{param}: {message}", param, reason)
