"""Processes that start in a fraction of a second: forked from one that has imported torch, NIXL and gRPC already.

Each is a fresh process that shares nothing with the test; it can be stopped and killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "psutil", "cluster.worker", "kv_transfer.nixl", "proxy.__main__"])

Say = Callable[[str], None]


class ForkedProcess:
    """`run(argument, say)` in a process of its own, with the methods of `subprocess.Popen`; its stderr is a file."""

    def __init__(self, run: Callable[[str, Say], None], argument: str, log: Path) -> None:
        self._words, theirs = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_main, args=(run, argument, theirs, log), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def read(self) -> str:
        """What it says next; nothing when it has ended."""
        try:
            return str(self._words.recv())
        except EOFError:
            return ""

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(run: Callable[[str, Say], None], argument: str, words: Connection, log: Path) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    run(argument, words.send)
