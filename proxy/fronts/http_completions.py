"""OpenAI's `/v1/completions` and `/v1/chat/completions`: a body becomes a `GenerationRequest`, then its answer."""

from __future__ import annotations

from fastapi import Request, Response

from proxy.errors import ApiError
from proxy.fronts.http_body import BodyReader
from proxy.fronts.http_generation import HttpGeneration, error_response
from proxy.fronts.metadata import read_cache_salt, read_kv_mode, read_priority, read_write_back, refuse_headers
from proxy.openai.answer import Answer
from proxy.openai.api import ChatBody, CompletionBody, parse
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
            refuse_headers(request.headers)
            priority = read_priority(request.headers)
            body = parse(await self._bodies.read(request), kind)
            use = body.tool_use()
            tool_calling = None if use is None else ToolCalling.of(use, self._service.model)
            generation = self._generation(request, request_id, body, tool_calling)
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

    def _generation(
        self, request: Request, request_id: str, body: CompletionBody | ChatBody, tool_calling: ToolCalling | None
    ) -> GenerationRequest:
        generation = GenerationRequest(
            body.model,
            request_id,
            body.to_prompts(),
            body.sampling(),
            priority=read_priority(request.headers, body.priority),
            cache_salt=read_cache_salt(request.headers, body.cache_salt),
            kv_mode=read_kv_mode(request.headers),
            writes_back=read_write_back(request.headers),
        )
        return generation if tool_calling is None else tool_calling.hold(generation, self._service.model)
