"""Signals that end a command: the first raises KeyboardInterrupt; then a Ctrl-C only says that there is a hurry.

So nothing can break off an ending half way: who waits in it asks `hurried`.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from time import monotonic
from types import FrameType

UNWIND_S = 5.0  # between the interrupt and the ending; after that it was lost on the way, and is raised again


class Interrupts:
    """Maintains whether the command is ending, and whether its wait for what runs is to be cut short."""

    def __init__(self) -> None:
        self.hurried = threading.Event()
        self._raised_at = -math.inf
        self._ending = False

    def install(self) -> None:
        """SIGTERM and SIGHUP count as Ctrl-C does; one that was to be ignored still is, as with nohup."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def end(self) -> None:
        """The command ends by itself now: no signal raises any more."""
        self._ending = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._ending or monotonic() - self._raised_at < UNWIND_S:
            if number == signal.SIGINT:  # a closing terminal sends SIGHUP more than once, a supervisor SIGTERM
                self.hurried.set()
            return
        self._raised_at = monotonic()
        if number == signal.SIGHUP:  # the terminal is gone, and writing to it an error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere, stream.fileno())
        raise KeyboardInterrupt
