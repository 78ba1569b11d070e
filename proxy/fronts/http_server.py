"""The HTTP front: which path is whose. Every error, whoever finds it, has OpenAI's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from proxy.access.gate import Gate
from proxy.config import ProxyConfig
from proxy.dashboard.http_dashboard import HttpDashboard
from proxy.dashboard.state import DashboardState
from proxy.errors import ApiError, ErrorCode
from proxy.fronts.http_body import BodyReader
from proxy.fronts.http_completions import HttpCompletions
from proxy.fronts.http_gate import HttpGate
from proxy.fronts.http_generation import error_response
from proxy.fronts.http_models import HttpModels
from proxy.fronts.http_shed import HttpShed
from proxy.fronts.http_status import HttpStatus
from proxy.fronts.http_tokens import HttpTokens
from proxy.fronts.openapi import document
from proxy.service import GenerationService
from proxy.workers.membership import MembershipWatch
from proxy.workers.worker_pool import WorkerPool


def build_app(
    service: GenerationService, pool: WorkerPool, watch: MembershipWatch, gate: Gate, config: ProxyConfig
) -> FastAPI:
    app = FastAPIOffline(title="pdserve", docs_url="/docs", redoc_url=None, static_url="/docs/static")
    described = document()
    app.openapi = lambda: described  # type: ignore[method-assign]  # FastAPI's way to have one's own description
    bodies = BodyReader(config, service.aside)
    completions = HttpCompletions(service, bodies)
    tokens = HttpTokens(service, bodies)
    models = HttpModels(service)
    status = HttpStatus(service, pool, watch)
    routes: list[tuple[str, str, Callable[..., Awaitable[Response]]]] = [
        ("POST", "/v1/completions", completions.completions),
        ("POST", "/v1/chat/completions", completions.chat_completions),
        ("GET", "/v1/models", models.models),
        ("GET", "/v1/models/{name:path}", models.model),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
        ("GET", "/health", status.health),
        ("GET", "/ready", status.ready),
        ("GET", "/metrics", status.metrics),
        ("GET", "/prometheus/targets", status.targets),
    ]
    for method, path, endpoint in routes:
        app.add_api_route(path, endpoint, methods=[method])
    dashboard = HttpDashboard(DashboardState(service, pool, watch))
    for path, endpoint in (
        ("/dashboard", dashboard.page),
        ("/dashboard/state", dashboard.state),
        ("/dashboard/{name}", dashboard.file),
    ):
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
    app.add_middleware(HttpShed, service=service)  # those added later stand before it
    app.add_middleware(HttpGate, gate=gate, open_metrics=config.open_metrics)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)
    return app


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    content = {"message": str(error.detail), "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": content}, error.status_code, headers=error.headers)


async def _on_fault(request: Request, error: Exception) -> Response:
    return error_response(ApiError(ErrorCode.INTERNAL, "a fault in the proxy; its log has more"))
