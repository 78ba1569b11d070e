"""The HTTP front: OpenAI's endpoints, health, metrics and scrape targets, over one `GenerationService`.

Every error, whoever finds it, has OpenAI's form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from proxy.config import ProxyConfig
from proxy.errors import ApiError, ErrorCode
from proxy.fronts.http_generation import HttpGeneration, error_response
from proxy.fronts.metadata import read_cache_salt, read_kv_mode, read_priority, read_write_back, refuse_headers
from proxy.openai.answer import Answer
from proxy.openai.api import ChatBody, CompletionBody, parse
from proxy.request.generation_request import GenerationRequest, new_request_id
from proxy.request.priority import NORMAL
from proxy.service import GenerationService
from proxy.tools.tool_calling import ToolCalling
from proxy.workers.worker_pool import WorkerPool
from rpc import worker_pb2

ROLE_NAMES = {
    worker_pb2.ROLE_PREFILL: "prefill",
    worker_pb2.ROLE_DECODE: "decode",
    worker_pb2.ROLE_MIXED: "mixed",
    worker_pb2.ROLE_POOL: "pool",
}


def build_app(service: GenerationService, pool: WorkerPool, config: ProxyConfig) -> FastAPI:
    app = FastAPI(title="pdserve", version="1", docs_url="/docs", redoc_url=None)
    front = HttpFront(service, pool, config)
    routes: list[tuple[str, str, Callable[..., Awaitable[Response]]]] = [
        ("POST", "/v1/completions", front.completions),
        ("POST", "/v1/chat/completions", front.chat_completions),
        ("GET", "/v1/models", front.models),
        ("GET", "/v1/models/{name:path}", front.model),
        ("GET", "/health", front.health),
        ("GET", "/ready", front.ready),
        ("GET", "/metrics", front.metrics),
        ("GET", "/prometheus/targets", front.targets),
    ]
    for method, path, endpoint in routes:
        app.add_api_route(path, endpoint, methods=[method])
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)
    return app


class HttpFront:
    def __init__(self, service: GenerationService, pool: WorkerPool, config: ProxyConfig) -> None:
        self._service = service
        self._pool = pool
        self._max_body_bytes = config.max_body_bytes
        self._body_timeout_s = config.body_timeout_s

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, CompletionBody)

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, ChatBody)

    async def models(self) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_object()]})

    async def model(self, name: str) -> Response:
        try:
            self._service.check_model(name)
        except ApiError as error:
            return error_response(error)
        return JSONResponse(self._model_object())

    async def health(self) -> Response:
        """Liveness: answers for as long as the process runs, ready or not."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """Readiness: 200 when a generation would work now, else 503."""
        if not self._service.is_ready:
            return error_response(ApiError(ErrorCode.UNAVAILABLE, "no worker is ready", reason="not_ready"))
        return JSONResponse({"status": "ready"})

    async def metrics(self) -> Response:
        return Response(self._service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def targets(self, request: Request) -> Response:
        """For Prometheus's http_sd_configs: this proxy, at the address that was asked, workers and pool nodes."""
        targets = [self._target(request.headers.get("host", ""), "proxy", "proxy")]
        for member in (*self._pool.members, *self._pool.pool_nodes):
            if member.metrics_address:
                role = ROLE_NAMES.get(member.role, "unknown")
                targets.append(self._target(member.metrics_address, role, member.worker))
        return JSONResponse(targets)

    async def _generate(self, request: Request, kind: type[CompletionBody] | type[ChatBody]) -> Response:
        request_id = request.headers.get("x-request-id") or new_request_id()
        priority = NORMAL
        try:
            refuse_headers(request.headers)
            priority = read_priority(request.headers)
            body = parse(await self._read(request), kind)
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

    async def _read(self, request: Request) -> bytes:
        """The body. Raises ApiError as soon as it is larger or slower than allowed."""
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

    def _model_object(self) -> dict[str, Any]:
        model = self._service.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "pdserve",
            "max_model_len": self._service.max_model_len,
        }

    def _target(self, address: str, role: str, worker: str) -> dict[str, Any]:
        labels = {"role": role, "worker": worker, "model_name": self._service.model.name}
        return {"targets": [address], "labels": labels}


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    content = {"message": str(error.detail), "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": content}, error.status_code, headers=error.headers)


async def _on_fault(request: Request, error: Exception) -> Response:
    return error_response(ApiError(ErrorCode.INTERNAL, "a fault in the proxy; its log has more"))
