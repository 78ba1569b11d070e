"""An object in a process of its own: a test calls its methods over a pipe, and stops, continues and kills it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from inspect import isawaitable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tests.integration.fork_server import CONTEXT

CALL_TIMEOUT_S = 20.0


class Child:
    """Maintains the process until the end of the `with` block. `make(*arguments)` is called in it, inside a loop."""

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_main, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def call(self, method: str, *arguments: object) -> Any:
        self._pipe.send((method, arguments))
        return self._answer()

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

    def _answer(self) -> Any:
        if not self._pipe.poll(CALL_TIMEOUT_S):
            raise TimeoutError("the child does not answer")
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _main(pipe: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    asyncio.run(_serve(pipe, make, arguments))


async def _serve(pipe: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
    served = make(*arguments)
    if isawaitable(served):
        served = await served
    pipe.send(None)
    while True:
        try:
            method, parameters = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return
        try:
            answer = getattr(served, method)(*parameters)
            pipe.send(await answer if isawaitable(answer) else answer)
        except Exception as error:  # noqa: BLE001  raised again in the test
            pipe.send(error)
