"""An object in a process of its own, which a test calls, stops, continues and kills."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch

from bench.remote import Remote
from tests.integration.fork_server import CONTEXT

CALL_TIMEOUT_S = 20.0


class Child(Remote):
    """Maintains the process until the end of the `with` block, which kills it."""

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        super().__init__(_on_one_thread, make, *arguments, context=CONTEXT, timeout_s=CALL_TIMEOUT_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def stop(self) -> None:
        """When this returns, none of its threads runs any more."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while self._thread_states() != {"T"}:
            assert time.monotonic() < deadline, "the child does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _thread_states(self) -> set[str]:
        """As in proc(5). The main thread may be stopped for a while before the others are."""
        stats = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        return {stat.read_text().rpartition(") ")[2][0] for stat in stats}

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def _on_one_thread(make: Callable[..., object], *arguments: object) -> object:
    torch.set_num_threads(1)
    return make(*arguments)
