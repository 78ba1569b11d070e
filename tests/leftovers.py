"""What a test run left on the machine: `python -m tests.leftovers before FILE`, the tests, `… after FILE`.

A process of the run is one that was started with PDSERVE_TEST_RUN in its environment, which they all inherit.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from deploy.cluster_state import default_store
from deploy.processes import command_of, marked

RUN_VARIABLE = "PDSERVE_TEST_RUN"
SETTLE_S = 5.0  # a process that is ending may take so long
FOLDERS = {
    Path("/dev/shm"): "*",
    Path(tempfile.gettempdir()): "pdserve-*",
    Path("/tmp"): "ray*",
    Path("/run/netns"): "pdserve-*",
}


def files() -> list[str]:
    """Shared memory, folders of clusters, sessions of Ray, network namespaces, and state files."""
    found = {str(path) for folder, pattern in FOLDERS.items() for path in folder.glob(pattern)}
    return sorted(found | {f"the state of cluster {state.name!r}" for state in default_store(os.environ).all()})


def processes(run: str) -> list[str]:
    """Those that are still there after a while, other than this one and the shells that run it."""
    ancestors = _ancestors()
    others = [process for process in marked(RUN_VARIABLE, run) if process.pid not in ancestors]
    return [f"process {p.pid}: {command_of(p.pid)[:120]}" for p in others if not p.wait(SETTLE_S)]


def _ancestors() -> set[int]:
    pid, found = os.getpid(), set()
    while pid > 1:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def main() -> None:
    when, file = sys.argv[1:]
    if when == "before":
        Path(file).write_text(json.dumps(files()))
        return
    left = sorted(set(files()) - set(json.loads(Path(file).read_text())))
    left += processes(os.environ[RUN_VARIABLE])
    if left:
        sys.exit("the tests left behind:\n  " + "\n  ".join(left))


if __name__ == "__main__":
    main()
