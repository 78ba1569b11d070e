"""`python -m cluster.die_with_parent COMMAND…` becomes COMMAND, and is killed when its parent process ends.

Linux only (PR_SET_PDEATHSIG); the setting outlives the exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def wrapped(command: tuple[str, ...]) -> list[str]:
    """The command line that runs `command` under this module, as a child of the calling process."""
    return [sys.executable, "-m", "cluster.die_with_parent", str(os.getpid()), *command]


def main() -> None:
    parent, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):  # it ended before the line above
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
