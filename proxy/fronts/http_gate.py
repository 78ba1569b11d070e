"""The gate before the HTTP front: no path is reached without it but those in `OPEN`."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as HttpScope

from proxy.access.caller import Scope
from proxy.access.gate import Gate
from proxy.errors import ApiError
from proxy.fronts.http_generation import error_response

OPEN = frozenset({"/health", "/ready"})
METRICS = frozenset({"/metrics", "/prometheus/targets"})


class HttpGate:
    def __init__(self, app: ASGIApp, gate: Gate, *, open_metrics: bool) -> None:
        self._app = app
        self._gate = gate
        self._open = OPEN | METRICS if open_metrics or not gate.has_keys else OPEN

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            headers = Headers(scope=scope)
            needed = Scope.OBSERVE if scope["path"] in METRICS else Scope.INFERENCE
            try:
                self._gate.admit(headers.getlist("authorization"), headers.getlist("x-tenant"), needed)
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
