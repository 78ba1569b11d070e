"""An object in a process of its own, whose methods are called from here over a pipe."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from inspect import isawaitable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from types import TracebackType
from typing import Any, Self

SPAWN = multiprocessing.get_context("spawn")
CALL_TIMEOUT_S = 300.0
EXIT_TIMEOUT_S = 10.0


class Remote:
    """Maintains the process until the end of the `with` block. `make(*arguments)` is called in it, inside a loop."""

    def __init__(
        self,
        make: Callable[..., object],
        *arguments: object,
        context: SpawnContext | ForkServerContext = SPAWN,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s  # of each call
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(EXIT_TIMEOUT_S)
        self._process.kill()

    def call(self, method: str, *arguments: object) -> Any:
        """Raises what the method raises, and EOFError when the process has ended."""
        self.start(method, *arguments)
        return self.answer()

    def start(self, method: str, *arguments: object) -> None:
        """As `call`, without waiting; `answer` waits, before anything else is called."""
        self._pipe.send((method, arguments))

    def answer(self) -> Any:
        if not self._pipe.poll(self._timeout_s):
            raise TimeoutError(f"the process did not answer within {self._timeout_s:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _main(pipe: Connection, make: Callable[..., object], arguments: tuple[object, ...]) -> None:
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
        except Exception as error:  # noqa: BLE001  raised again on the other side
            pipe.send(error)
