"""Refuses a generation for which there is no place, before anything else is done for it: a flood costs little."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.access.gate import current_caller
from proxy.errors import ApiError
from proxy.fronts import refusal
from proxy.fronts.http_generation import error_response
from proxy.request.generation_request import new_request_id
from proxy.service import GenerationService

PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})


class HttpShed:
    """Stands behind the gate, which says who asks."""

    def __init__(self, app: ASGIApp, service: GenerationService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id") or new_request_id()
        try:
            with refusal.counted(self._service, headers, request_id) as priority:
                self._service.check_room(current_caller(), priority)
        except ApiError as error:
            await error_response(error, request_id)(scope, receive, send)
            return
        await self._app(scope, receive, send)
