"""The folder of one cluster, which holds everything it writes, and what is kept of it after a launch that failed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def make_folder() -> Path:
    """A new one, its path short: Ray puts sockets below it, and their paths may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="pdserve-"))
    if len(str(folder)) > 40:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="pdserve-", dir="/tmp"))
    return folder


def keep_logs(folder: Path, kept: Path) -> Path | None:
    """Copies the logs of the cluster, and of Ray's own processes, to `kept`; None when nothing was logged."""
    logs = folder / "logs"
    if not logs.exists():
        return None
    shutil.rmtree(kept, ignore_errors=True)  # of the launch before
    shutil.copytree(logs, kept)
    for session in (folder / "ray").glob("session_*_*"):
        shutil.copytree(session / "logs", kept / "ray", symlinks=True, dirs_exist_ok=True)
    return kept
