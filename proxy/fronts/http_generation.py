"""The HTTP answer to one generation, streamed or whole; whatever happens to the client ends the request.

Nothing is sent before the first token, so that a failure until then has its own status, and the headers are true.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from proxy.errors import ApiError, ErrorCode
from proxy.fronts.metadata import answer_metadata
from proxy.openai.answer import Answer, error_object, sse
from proxy.openai.choice import Choice
from proxy.openai.tool_calls import ToolCallChoice
from proxy.request.event_buffer import FinishedEvent
from proxy.request.generation_request import GenerationRequest
from proxy.request.reading import Reading
from proxy.service import GenerationService
from proxy.text import prompt as prompts
from proxy.tools.tool_calling import ToolCalling

UNREAD_BODY = (
    ErrorCode.TOO_LARGE,
    ErrorCode.TOO_SLOW,
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.PERMISSION_DENIED,
)  # the rest of it is not waited for
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a reverse proxy must pass each event on at once
}


class HttpGeneration(Response):
    """Submits the request when it is sent, and answers."""

    def __init__(
        self,
        service: GenerationService,
        request: GenerationRequest,
        answer: Answer,
        *,
        streams: bool,
        echoes: bool,
        tool_calling: ToolCalling | None = None,
    ) -> None:
        """`echoes`: each choice's text starts with its prompt's."""
        super().__init__()
        self._service = service
        self._request = request
        self._answer = replace(answer, created=int(time.time()))
        self._streams = streams
        self._echoes = echoes
        self._tool_calling = tool_calling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            generation = await self._service.submit(self._request)
            async with _cancelled_with_client(generation, receive):
                if self._streams:
                    await self._stream(generation, send)
                    return
                response = await self._whole(generation)
        except ApiError as error:
            response = error_response(error, self._request.request_id)
        await response(scope, receive, send)

    async def _whole(self, generation: Reading) -> Response:
        choices = self._choices(generation)
        contents: dict[int, dict[str, Any]] = {}
        headers: dict[str, str] = {}
        async for event in generation.events:
            if isinstance(event, FinishedEvent):
                contents[event.choice] = choices[event.choice].whole(event)
            else:
                headers = headers or answer_metadata(generation.choices[event.choice])
                choices[event.choice].add(event)
        in_order = [contents[index] for index in range(len(choices))]
        return JSONResponse(self._answer.whole(in_order, generation.usage), headers=headers)

    async def _stream(self, generation: Reading, send: Send) -> None:
        """Raises ApiError when the request fails before its first token."""
        choices = self._choices(generation)
        first = await anext(generation.events)
        response = Response(headers={**answer_metadata(generation.choices[first.choice]), **STREAM_HEADERS})
        del response.headers["content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        try:
            for content in choices[first.choice].stream(first):
                await _send_chunk(send, self._answer.chunk(content))
            async for event in generation.events:
                for content in choices[event.choice].stream(event):
                    await _send_chunk(send, self._answer.chunk(content))
            for chunk in self._answer.closing(generation.usage):
                await _send_chunk(send, chunk)
        except ApiError as error:  # too late for a status
            await _send_chunk(send, sse(error_object(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _choices(self, generation: Reading) -> list[Choice]:
        model, sampling = self._service.model, self._request.sampling
        has_logprobs = sampling.num_logprobs is not None
        if self._tool_calling is not None:
            return [
                ToolCallChoice(index, model.tokenizer, self._tool_calling.parser(), has_logprobs=has_logprobs)
                for index in range(len(generation.choices))
            ]
        texts = [""] * len(self._request.prompts)
        if self._echoes:
            ids = [choice.job.prompt_ids for choice in generation.choices[:: sampling.n]]
            texts = [prompts.text(*each, model) for each in zip(self._request.prompts, ids, strict=True)]
        return [
            Choice(
                self._answer.kind,
                index,
                model.tokenizer,
                has_logprobs=has_logprobs,
                echoed=texts[index // sampling.n],
            )
            for index in range(len(generation.choices))
        ]


def error_response(error: ApiError, request_id: str | None = None) -> Response:
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s is not None else {}
    if request_id is not None and request_id.isascii() and request_id.isprintable():
        headers["x-request-id"] = request_id
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    if error.code in UNREAD_BODY:
        headers["connection"] = "close"
    return JSONResponse(error_object(error), error.status.http, headers)


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


@contextlib.asynccontextmanager
async def _cancelled_with_client(generation: Reading, receive: Receive) -> AsyncIterator[None]:
    """Inside, a client that goes away cancels the request; on the way out nothing of it is left running."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        generation.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        generation.cancel()
