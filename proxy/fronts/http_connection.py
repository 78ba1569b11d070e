"""One client's HTTP connection: uvicorn's, with limits that it does not have.

So many connections at once and no more; a head that comes too slowly, and an answer that is read too slowly, end the
connection, and what it asked for with it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from proxy.config import ProxyConfig

TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b'content-length: %d\r\n\r\n{"error": {"message": "too many connections (max_connections)", '
    b'"type": "service_unavailable_error", "param": null, "code": "too_many_connections"}}'
)
BODY_BYTES = len(TOO_MANY.partition(b"\r\n\r\n")[2])
logger = logging.getLogger(__name__)


class HttpConnection(H11Protocol):
    """Maintains at most one timer for what the client owes: the rest of a head, or to read what it was sent."""

    def __init__(self, settings: ProxyConfig, **given: Any) -> None:
        super().__init__(**given)
        self._settings = settings
        self._owed: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_connections:
            transport.write(TOO_MANY % BODY_BYTES)
            self._end("too many connections")
            return
        self._expect("a request's head", self._settings.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.flow.write_paused or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_nothing()
        elif self._owed is None and self.timeout_keep_alive_task is None:  # the beginning of another request
            self._expect("a request's head", self._settings.header_timeout_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_nothing()
        self._expect("reading what was sent", self._settings.write_timeout_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_nothing()

    def timeout_keep_alive_handler(self) -> None:
        self._end("idle")

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _expect(self, what: str, timeout_s: float) -> None:
        self._owed = self.loop.call_later(timeout_s, self._cut, f"{what} took longer than {timeout_s:g} s")

    def _expect_nothing(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def _cut(self, why: str) -> None:
        """At once: a close would wait for a client that does not read."""
        logger.info("connection of %s cut: %s", self.client, why)
        self.transport.abort()

    def _end(self, why: str) -> None:
        """When all is read that was sent, or after a while."""
        self.transport.close()
        self._expect_nothing()
        self._owed = self.loop.call_later(self._settings.write_timeout_s, self._cut, why)
