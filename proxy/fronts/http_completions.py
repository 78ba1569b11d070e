"""OpenAI's `/v1/completions` and `/v1/chat/completions`: a body becomes a `GenerationRequest`, then its answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import Request, Response

from proxy.errors import ApiError
from proxy.fronts.http_body import BodyReader
from proxy.fronts.http_generation import HttpGeneration, error_response
from proxy.fronts.metadata import read_priority
from proxy.fronts.openai_request import generation_request
from proxy.openai.answer import Answer
from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.body import parse
from proxy.request.generation_request import GenerationRequest, new_request_id
from proxy.request.priority import NORMAL
from proxy.service import GenerationService
from proxy.tools.tool_calling import ToolCalling


class HttpCompletions:
    def __init__(self, service: GenerationService, bodies: BodyReader) -> None:
        self._service = service
        self._bodies = bodies

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, CompletionBody)

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, ChatBody)

    async def _generate(self, request: Request, kind: type[CompletionBody] | type[ChatBody]) -> Response:
        request_id = request.headers.get("x-request-id") or new_request_id()
        priority = NORMAL
        try:
            priority = read_priority(request.headers)
            read = partial(self._parse, request.headers, request_id, kind)
            body, generation, tool_calling = await self._bodies.read(request, read)
        except ApiError as error:
            self._service.count_refusal(request_id, error, priority)
            return error_response(error, request_id)
        answer = Answer(
            kind="chat" if kind is ChatBody else "text",
            request_id=request_id,
            model=self._service.model.name,
            wants_usage=body.wants_usage,
        )
        return HttpGeneration(
            self._service, generation, answer, streams=body.streams, echoes=body.echoes, tool_calling=tool_calling
        )

    def _parse(
        self, headers: Mapping[str, str], request_id: str, kind: type[CompletionBody] | type[ChatBody], raw: bytes
    ) -> tuple[CompletionBody | ChatBody, GenerationRequest, ToolCalling | None]:
        """Raises ApiError."""
        body = parse(raw, kind)
        use = body.tool_use()
        generation = generation_request(body, headers, request_id)
        if use is None:
            return body, generation, None
        tool_calling = ToolCalling.of(use, self._service.model)
        return body, tool_calling.hold(generation, self._service.model), tool_calling
