"""Why a cluster could not be brought up."""

from __future__ import annotations

import re

from deploy.cluster_state import ClusterState
from deploy.errors import CommandError
from deploy.ray_process import last_lines

NUM_LOG_LINES = 20
TRACEBACK = re.compile(r"^(\s|$|Traceback |The above exception|During handling)")  # the kept log has it


class LaunchError(CommandError):
    """The launch failed; the message has what the dead process said last."""

    @classmethod
    def of(cls, state: ClusterState, process: str, error: str) -> LaunchError:
        """`process` names its log: controller, proxy, or a worker."""
        lines = last_lines(state.log_dir / f"{process}.log", NUM_LOG_LINES, leave_out=TRACEBACK)
        return cls(f"{process} could not start: {error}\nthe last lines of its log:\n{lines}")
