"""The commands that other threads have for a transport's own.

Each is taken by that thread or refused, also one that comes when the thread has ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from kv_transfer.transport import TransferFailed


@dataclass(frozen=True, slots=True)
class Command:
    """`run` is called in the transport's thread; an error of it fails `future`. A connect waits for its peer to go."""

    future: Future[None]
    run: Callable[[], None]
    connects: str | None = None  # the peer

    def refuse(self, reason: str) -> None:
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(TransferFailed(reason))


class Inbox:
    """Maintains the order in which commands were put."""

    def __init__(self) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._reason = ""

    def put(self, command: Command) -> Future[None]:
        self._commands.put(command)
        if self._closed.is_set():
            self._refuse_all()
        return command.future

    def take(self, timeout_s: float | None) -> Iterator[Command]:
        """All that is there, after a wait of at most `timeout_s` for the first."""
        try:
            yield self._commands.get(timeout=timeout_s)
            while True:
                yield self._commands.get_nowait()
        except queue.Empty:
            return

    def close(self, reason: str) -> None:
        """From now on commands are refused."""
        self._reason = reason
        self._closed.set()
        self._refuse_all()

    def _refuse_all(self) -> None:
        for command in self.take(timeout_s=0.0):
            command.refuse(self._reason)
