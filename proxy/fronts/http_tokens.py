"""`/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from proxy.errors import ApiError
from proxy.fronts.http_body import BodyReader
from proxy.fronts.http_generation import error_response
from proxy.fronts.tokenization import Tokenization
from proxy.openai.body import parse
from proxy.openai.token_bodies import DetokenizeBody, TokenizeBody
from proxy.service import GenerationService


class HttpTokens:
    def __init__(self, service: GenerationService, bodies: BodyReader) -> None:
        self._service = service
        self._bodies = bodies
        self._tokenization = Tokenization(service)

    async def tokenize(self, request: Request) -> Response:
        return await _answer(request, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await _answer(request, self._detokenize)

    async def _tokenize(self, request: Request) -> Response:
        body = await self._bodies.read(request, partial(parse, kind=TokenizeBody))
        ids = await self._tokenization.to_ids(body.model, body.to_prompt())
        return JSONResponse(body.answer(ids, self._service.model.tokenizer, self._service.max_model_len))

    async def _detokenize(self, request: Request) -> Response:
        body = await self._bodies.read(request, partial(parse, kind=DetokenizeBody))
        return JSONResponse({"prompt": await self._tokenization.to_text(body.model, body.tokens)})


async def _answer(request: Request, endpoint: Callable[[Request], Awaitable[Response]]) -> Response:
    try:
        return await endpoint(request)
    except ApiError as error:
        return error_response(error)
