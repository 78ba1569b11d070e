"""Processes that outlive the command that started them: known again later, stopped for certain.

A process is its pid and its start time, so a pid that was given to somebody else is never signalled. Linux's /proc.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessReference:
    pid: int
    started_at: int  # clock ticks since boot

    @property
    def is_alive(self) -> bool:
        return _start_time(self.pid) == self.started_at

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it is gone within that time; None waits for ever."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            return not self.is_alive or bool(select.select([descriptor], [], [], timeout_s)[0])
        finally:
            os.close(descriptor)

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL to it and its process group when it has not ended by then."""
        if not self.is_alive:
            return
        _signal(self.pid, signal.SIGTERM)
        if self.wait(timeout_s):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
        _signal(self.pid, signal.SIGKILL)
        self.wait(timeout_s)


def reference(pid: int) -> ProcessReference:
    """Raises ProcessLookupError."""
    started_at = _start_time(pid)
    if started_at is None:
        raise ProcessLookupError(f"no process {pid}")
    return ProcessReference(pid, started_at)


def marked(variable: str, value: str) -> list[ProcessReference]:
    """Every process, this one apart, that was started with this environment variable."""
    mark = f"{variable}={value}".encode()
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or another user's
            continue
        if mark in environment:
            with contextlib.suppress(ProcessLookupError):
                found.append(reference(int(folder.name)))
    return found


def in_sessions(leaders: Iterable[ProcessReference]) -> list[ProcessReference]:
    """Every process, this one apart, in the session that one of these leads or led."""
    own = {leader.pid for leader in leaders if _start_time(leader.pid) in (None, leader.started_at)}
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(ProcessLookupError):  # gone since
            if os.getsid(int(folder.name)) in own:
                found.append(reference(int(folder.name)))
    return found


def command_of(pid: int) -> str:
    """Its command line in one string, empty when it is gone or not ours to see."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """None when it is gone, a zombie included."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started_at = fields[0], int(fields[19])  # fields 3 and 22 of proc(5), after the name
    return None if state in "ZX" else started_at


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
