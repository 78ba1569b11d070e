"""The gate before the HTTP front: no path is reached without it but those in `OPEN`."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as HttpScope

from proxy.access.caller import Scope
from proxy.access.gate import Gate
from proxy.errors import ApiError, ErrorCode
from proxy.fronts.browser_key import CHALLENGE, as_bearer
from proxy.fronts.http_generation import error_response

OPEN = frozenset({"/health", "/ready"})
METRICS = frozenset({"/metrics", "/prometheus/targets"})
DASHBOARD = "/dashboard"  # and what is below


class HttpGate:
    def __init__(self, app: ASGIApp, gate: Gate, *, open_metrics: bool) -> None:
        self._app = app
        self._gate = gate
        self._open = OPEN | METRICS if open_metrics or not gate.has_keys else OPEN

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open:
            refused = self._refuse(scope["path"], Headers(scope=scope))
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refuse(self, path: str, headers: Headers) -> Response | None:
        """None: whoever asks may have it."""
        authorization, is_for_browsers = headers.getlist("authorization"), f"{path}/".startswith(f"{DASHBOARD}/")
        try:
            self._gate.admit(
                as_bearer(authorization) if is_for_browsers else authorization,
                headers.getlist("x-tenant"),
                Scope.OBSERVE if is_for_browsers or path in METRICS else Scope.INFERENCE,
            )
        except ApiError as error:
            response = error_response(error)
            if is_for_browsers and error.code is ErrorCode.UNAUTHENTICATED:
                response.headers["www-authenticate"] = CHALLENGE
            return response
        return None
