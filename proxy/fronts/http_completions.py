"""OpenAI's `/v1/completions` and `/v1/chat/completions`: a body becomes a `GenerationRequest`, then its answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import Request, Response

from proxy.access.caller import Caller
from proxy.access.gate import current_caller
from proxy.errors import ApiError
from proxy.fronts import refusal
from proxy.fronts.asked import generation_request
from proxy.fronts.http_body import BodyReader
from proxy.fronts.http_generation import HttpGeneration, error_response
from proxy.openai.answer import Answer
from proxy.openai.api import ChatBody, CompletionBody
from proxy.openai.body import parse
from proxy.request.generation_request import GenerationRequest, new_request_id
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
        read = partial(self._parse, request.headers, current_caller(), request_id, kind)
        try:
            with refusal.counted(self._service, request.headers, request_id):
                body, generation, tool_calling = await self._bodies.read(request, read)
        except ApiError as error:
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
        self,
        headers: Mapping[str, str],
        caller: Caller,
        request_id: str,
        kind: type[CompletionBody] | type[ChatBody],
        raw: bytes,
    ) -> tuple[CompletionBody | ChatBody, GenerationRequest, ToolCalling | None]:
        """Raises ApiError."""
        body = parse(raw, kind)
        use = body.tool_use()
        generation = generation_request(body, headers, caller, request_id)
        if use is None:
            return body, generation, None
        tool_calling = ToolCalling.of(use, self._service.model)
        return body, tool_calling.hold(generation, self._service.model), tool_calling
