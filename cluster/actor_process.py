"""What every actor process of ours sets up first: one log file for all it and its children say.

The file is appended to, so a worker's successive incarnations share it.
"""

from __future__ import annotations

import os
from pathlib import Path

from telemetry.config import LogConfig
from telemetry.log_format import log_to_stderr


def log_file(log_dir: str, name: str) -> Path:
    """Where the process called `name` (`decode-0`, `controller`, `proxy`) writes."""
    return Path(log_dir) / f"{name}.log"


def log_to(file: Path, logs: LogConfig) -> None:
    """Sends standard output, standard error and `logging` of this process there, what native code prints included.

    What does not go through `logging` keeps its own form, whatever the format is.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    log_to_stderr(logs.format)
