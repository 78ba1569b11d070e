"""The body of an HTTP request, read within the limits of size and time, and parsed without holding up the loop.

A body that is too large or too slow is refused as soon as it is known to be; the rest of it is not waited for. All
bodies that are being read, or wait to be parsed, share one bound.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from proxy.admission.aside import Aside
from proxy.config import ProxyConfig
from proxy.errors import ApiError, ErrorCode

T = TypeVar("T")
INLINE_BYTES = 32 << 10  # a larger body is parsed in a thread


class BodyReader:
    """Maintains how many bytes of bodies are held."""

    def __init__(self, config: ProxyConfig, aside: Aside) -> None:
        self._max_body_bytes = config.max_body_bytes
        self._max_bytes = config.max_bodies_bytes
        self._body_timeout_s = config.body_timeout_s
        self._aside = aside
        self._num_bytes = 0

    async def read(self, request: Request, parse: Callable[[bytes], T]) -> T:
        """What `parse` makes of the body. Raises ApiError, and what `parse` raises."""
        with self._holding() as hold:
            body = await self._read(request, hold)
            return await self._aside.run(len(body) > INLINE_BYTES, parse, body)

    async def _read(self, request: Request, hold: Callable[[int], None]) -> bytes:
        """Raises ApiError as soon as the body is larger or slower than allowed, or all of them are too large."""
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > self._max_body_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await self._collect(request, hold)
        except TimeoutError as error:
            limit_s = self._body_timeout_s
            message = f"the body did not arrive within {limit_s:g} s (body_timeout_s)"
            raise ApiError(ErrorCode.TOO_SLOW, message, reason="body_timeout") from error
        except ClientDisconnect as error:
            raise ApiError(ErrorCode.CANCELLED, "the client went away before its body was here") from error

    async def _collect(self, request: Request, hold: Callable[[int], None]) -> bytes:
        size, pieces = 0, []
        async for piece in request.stream():
            size += len(piece)
            if size > self._max_body_bytes:
                raise self._too_large()
            hold(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    @contextlib.contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Inside, bytes are counted; on the way out they are let go."""
        held = 0

        def hold(num_bytes: int) -> None:
            nonlocal held
            if self._num_bytes + num_bytes > self._max_bytes:
                message = f"the server is busy reading bodies: {self._max_bytes} bytes at once (max_bodies_bytes)"
                raise ApiError(ErrorCode.RESOURCE_EXHAUSTED, message, reason="bodies_full", retry_after_s=1)
            self._num_bytes += num_bytes
            held += num_bytes

        try:
            yield hold
        finally:
            self._num_bytes -= held

    def _too_large(self) -> ApiError:
        limit = self._max_body_bytes
        return ApiError(
            ErrorCode.TOO_LARGE, f"the body is larger than {limit} bytes (max_body_bytes)", reason="body_too_large"
        )
