"""The page at /dashboard, its files, and the state that it asks for each second.

The page loads nothing from elsewhere and runs no script that is not one of its files: the headers say so.
"""

from __future__ import annotations

import re
from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from proxy.dashboard.state import DashboardState
from proxy.errors import invalid
from proxy.fronts.http_generation import error_response

NUMBER = re.compile(r"-1|[0-9]{1,15}")
FOLDER = Path(__file__).with_name("web")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class HttpDashboard:
    """Maintains the page's files, read once."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state
        self._files = {file.name: file.read_bytes() for file in FOLDER.iterdir() if file.suffix in TYPES}

    async def page(self) -> Response:
        return self._answer("page.html")

    async def file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404, f"the dashboard has no file {name}")
        return self._answer(name)

    async def state(self, request: Request) -> Response:
        """`after`: the number of the last point that the page has."""
        after = request.query_params.get("after", "-1")
        if not NUMBER.fullmatch(after):
            return error_response(invalid("after", "must be the number of a point, or -1 for all of them"))
        return JSONResponse(self._state.after(int(after)), headers={"cache-control": "no-store"})

    def _answer(self, name: str) -> Response:
        return Response(self._files[name], media_type=TYPES[Path(name).suffix], headers=HEADERS)
