"""`pdserve logs`."""

from __future__ import annotations

import os

from deploy.cluster_state import default_store
from deploy.errors import CommandError
from deploy.ray_process import CONSOLE_ADVICE, last_lines


def run(name: str, worker: str | None, lines: int) -> None:
    log_dir = default_store(os.environ).read(name).log_dir
    known = sorted(file.stem for file in log_dir.glob("*.log"))
    if worker is not None and worker not in known:
        raise CommandError(f"there is no log of {worker!r}; there are: {', '.join(known)}")
    shown = known if worker is None else [worker]
    for log in shown:
        if worker is None:
            print(f"==> {log} <==")
        print(last_lines(log_dir / f"{log}.log", lines, leave_out=CONSOLE_ADVICE if log == "ray" else None))
