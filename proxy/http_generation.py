"""The HTTP answer to one generation, streamed or whole; whatever happens to the client ends the request.

Nothing is sent before the first token, so that a failure until then has its own status, and the headers are true.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from proxy.errors import ApiError, ErrorCode
from proxy.event_buffer import FinishedEvent, TokenEvent
from proxy.lifecycle import Lifecycle
from proxy.metadata import answer_metadata
from proxy.openai_answer import Answer, error_object, sse
from proxy.service import GenerationRequest, GenerationService

UNREAD_BODY = (ErrorCode.TOO_LARGE, ErrorCode.TOO_SLOW)  # the rest of it is not waited for
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a reverse proxy must pass each event on at once
}


class HttpGeneration(Response):
    """Submits the request when it is sent, and answers."""

    def __init__(
        self, service: GenerationService, request: GenerationRequest, answer: Answer, *, streams: bool
    ) -> None:
        super().__init__()
        self._service = service
        self._request = request
        self._answer = replace(answer, created=int(time.time()))
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            lifecycle = await self._service.submit(self._request)
            async with _cancelled_with_client(lifecycle, receive):
                if self._streams:
                    await self._stream(lifecycle, send)
                    return
                response = await self._whole(lifecycle)
        except ApiError as error:
            response = error_response(error, self._request.request_id)
        await response(scope, receive, send)

    async def _whole(self, lifecycle: Lifecycle) -> Response:
        texts: list[str] = []
        headers: dict[str, str] = {}
        async for event in lifecycle.events:
            if isinstance(event, FinishedEvent):
                content = self._answer.whole("".join(texts), event.reason, event.usage)
                return JSONResponse(content, headers=headers)
            headers = headers or answer_metadata(lifecycle)
            texts.append(event.text)
        raise RuntimeError("the events ended without an end")

    async def _stream(self, lifecycle: Lifecycle, send: Send) -> None:
        """Raises ApiError when the request fails before its first token."""
        first = await anext(lifecycle.events)
        response = Response(headers={**answer_metadata(lifecycle), **STREAM_HEADERS})
        del response.headers["content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        try:
            for chunk in [*self._answer.opening(), *self._chunks(first)]:
                await _send_chunk(send, chunk)
            async for event in lifecycle.events:
                for chunk in self._chunks(event):
                    await _send_chunk(send, chunk)
        except ApiError as error:  # too late for a status
            await _send_chunk(send, sse(error_object(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _chunks(self, event: TokenEvent | FinishedEvent) -> list[bytes]:
        if isinstance(event, FinishedEvent):
            return self._answer.closing(event.reason, event.usage)
        return [self._answer.piece(event.text)] if event.text else []


def error_response(error: ApiError, request_id: str | None = None) -> Response:
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s is not None else {}
    if request_id is not None and request_id.isascii() and request_id.isprintable():
        headers["x-request-id"] = request_id
    if error.code in UNREAD_BODY:
        headers["connection"] = "close"
    return JSONResponse(error_object(error), error.status.http, headers)


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


@contextlib.asynccontextmanager
async def _cancelled_with_client(lifecycle: Lifecycle, receive: Receive) -> AsyncIterator[None]:
    """Inside, a client that goes away cancels the request; on the way out nothing of it is left running."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        lifecycle.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        lifecycle.cancel()
