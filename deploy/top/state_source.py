"""The proxy's /dashboard/state, asked again and again; points come once, and those of the newest minutes are kept."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from deploy.errors import CommandError

TIMEOUT_S = 5.0
MOST_POINTS = 120


class NoStateError(CommandError):
    """The proxy did not tell; the message says why, and what to do."""


class StateSource:
    """Maintains the points of one proxy's life. Use as a context."""

    def __init__(self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None) -> None:
        """`headers`: the key, where one is asked for; `context`: where the port has TLS."""
        verify = context if context is not None else True
        self._client = httpx.Client(base_url=url, headers=headers, verify=verify, timeout=TIMEOUT_S, trust_env=False)
        self._url = url
        self._points: list[dict[str, Any]] = []
        self._started_at: float | None = None

    def __enter__(self) -> StateSource:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def read(self) -> dict[str, Any]:
        """With all points that are kept. Raises NoStateError."""
        state = self._ask()
        if self._points and state["started_at"] != self._started_at:  # another life: its points count from 0
            self._points = []
            state = self._ask()
        self._started_at = state["started_at"]
        self._points = [*self._points, *state["points"]][-MOST_POINTS:]
        return {**state, "points": list(self._points)}

    def _ask(self) -> dict[str, Any]:
        newest = self._points[-1]["number"] if self._points else -1
        try:
            answer = self._client.get("/dashboard/state", params={"after": newest})
            answer.raise_for_status()
            state: dict[str, Any] = answer.json()
        except httpx.HTTPStatusError as error:
            raise NoStateError(
                f"the proxy at {self._url} answered {error.response.status_code}: {error.response.text[:200]}"
            ) from error
        except (httpx.HTTPError, ValueError) as error:
            raise NoStateError(
                f"the proxy at {self._url} did not answer ({error}): `pdserve status` shows whether it runs, "
                "`pdserve logs proxy` why not"
            ) from error
        return state
