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
    found = []
    for pid in _others():
        if environment_of(pid).get(variable) == value:
            with contextlib.suppress(ProcessLookupError):
                found.append(reference(pid))
    return found


def in_sessions(leaders: Iterable[ProcessReference]) -> list[ProcessReference]:
    """Every process, this one apart, in the session that one of these leads or led."""
    own = {leader.pid for leader in leaders if _start_time(leader.pid) in (None, leader.started_at)}
    found = []
    for pid in _others():
        with contextlib.suppress(ProcessLookupError):  # gone since
            if os.getsid(pid) in own:
                found.append(reference(pid))
    return found


def environment_of(pid: int) -> dict[str, str]:
    """What it was started with, empty when it is gone or not ours to see."""
    try:
        entries = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def command_of(pid: int) -> str:
    """Its command line in one string, empty when it is gone or not ours to see."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _others() -> list[int]:
    """The pids there are, this process's left out."""
    return [int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit() and folder.name != str(os.getpid())]


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
