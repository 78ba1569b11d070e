"""Signals that end a command: all of them raise KeyboardInterrupt at first, and only Ctrl-C counts while it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> None:
    """SIGTERM and SIGHUP become KeyboardInterrupt, as SIGINT is; one that was to be ignored still is, as with nohup."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def only_ctrl_c() -> None:
    """A closing terminal sends SIGHUP more than once, a supervisor SIGTERM: what is ending already goes on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Whatever is sent, what happens here is finished; every step of it has its own deadline."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:  # the terminal is gone, and writing to it an error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    raise KeyboardInterrupt
