"""The body of an HTTP request, read within the limits of size and time.

A body that is too large or too slow is refused as soon as it is known to be; the rest of it is not waited for.
"""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from proxy.config import ProxyConfig
from proxy.errors import ApiError, ErrorCode


class BodyReader:
    def __init__(self, config: ProxyConfig) -> None:
        self._max_body_bytes = config.max_body_bytes
        self._body_timeout_s = config.body_timeout_s

    async def read(self, request: Request) -> bytes:
        """Raises ApiError as soon as the body is larger or slower than allowed."""
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > self._max_body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await self._collect(request)
        except TimeoutError as error:
            limit_s = self._body_timeout_s
            message = f"the body did not arrive within {limit_s:g} s (body_timeout_s)"
            raise ApiError(ErrorCode.TOO_SLOW, message, reason="body_timeout") from error
        except ClientDisconnect as error:
            raise ApiError(ErrorCode.CANCELLED, "the client went away before its body was here") from error

    async def _collect(self, request: Request) -> bytes:
        size, pieces = 0, []
        async for piece in request.stream():
            size += len(piece)
            if size > self._max_body_bytes:
                raise self._too_large()
            pieces.append(piece)
        return b"".join(pieces)

    def _too_large(self) -> ApiError:
        limit = self._max_body_bytes
        return ApiError(
            ErrorCode.TOO_LARGE, f"the body is larger than {limit} bytes (max_body_bytes)", reason="body_too_large"
        )
