"""Very many HTTP clients at once in one thread, cheap enough not to be what is measured.

Each has a connection of its own, sends one streamed completion, and leaves when its patience is over.
"""

from __future__ import annotations

import heapq
import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.drill.impatient import Ask

LAST = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Client:
    """What one client saw; times are seconds from when it began to connect."""

    ask: Ask
    sock: socket.socket
    began_at: float
    sent: bool = False
    answer: bytes = b""
    first_byte_s: float | None = None
    ended_s: float | None = None
    left: bool = False  # its patience was over

    @property
    def status(self) -> int | None:
        """None: nothing came."""
        return int(self.answer[9:12]) if len(self.answer) >= 12 else None

    @property
    def is_whole(self) -> bool:
        head, _, body = self.answer.partition(b"\r\n\r\n")
        if self.status == 200:
            return LAST in body
        length = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), b":0")
        return bool(head) and len(body) >= int(length.partition(b":")[2])

    @property
    def retry_after_s(self) -> int | None:
        found = [line for line in self.answer.split(b"\r\n") if line.lower().startswith(b"retry-after:")]
        return int(found[0].partition(b":")[2]) if found else None


class Crowd:
    """Maintains the clients that have not ended."""

    def __init__(self, address: tuple[str, int], asks: Sequence[Ask]) -> None:
        self._address = address
        self._asks = asks
        self._selector = selectors.DefaultSelector()
        self._leaving: list[tuple[float, int]] = []
        self.clients: list[Client] = []

    def run(self) -> list[Client]:
        """Until the last one has its answer, or has left."""
        for number, ask in enumerate(self._asks):
            self._begin(number, ask)
            if number % 100 == 99:
                self._turn(0.0)
        while self._selector.get_map():
            self._turn(0.05)
        self._selector.close()
        return self.clients

    def _begin(self, number: int, ask: Ask) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        client = Client(ask, sock, time.monotonic())
        self.clients.append(client)
        sock.connect_ex(self._address)
        self._selector.register(sock, selectors.EVENT_WRITE, client)
        heapq.heappush(self._leaving, (client.began_at + ask.patience_s, number))

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            client: Client = key.data
            try:
                self._send(client) if not client.sent else self._receive(client)
            except OSError:
                self._end(client)
        now = time.monotonic()
        while self._leaving and self._leaving[0][0] <= now:
            client = self.clients[heapq.heappop(self._leaving)[1]]
            if client.ended_s is None:
                client.left = True
                self._end(client)

    def _send(self, client: Client) -> None:
        body = json.dumps(client.ask.body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        headers = "".join(f"{name}: {value}\r\n" for name, value in client.ask.headers.items())
        client.sock.send(f"{head}{headers}\r\n".encode() + body)
        client.sent = True
        self._selector.modify(client.sock, selectors.EVENT_READ, client)

    def _receive(self, client: Client) -> None:
        data = client.sock.recv(65536)
        if data and client.first_byte_s is None:
            client.first_byte_s = time.monotonic() - client.began_at
        client.answer += data
        if not data or client.is_whole:
            self._end(client)

    def _end(self, client: Client) -> None:
        client.ended_s = time.monotonic() - client.began_at
        self._selector.unregister(client.sock)
        client.sock.close()
