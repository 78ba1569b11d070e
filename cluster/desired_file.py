"""The pools' desired sizes on disk, so that a controller that is started again wishes what the last one did.

Written whole or not at all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from cluster.roles import ROLES, RoleName


class DesiredFile:
    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[RoleName, int] | None:
        """None when no controller ran before."""
        try:
            record = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        return {role: record.get(role, 0) for role in ROLES}  # it may lack roles

    def write(self, desired: dict[RoleName, int]) -> None:
        draft = self._file.with_suffix(".draft")
        self._file.parent.mkdir(parents=True, exist_ok=True)  # the launch may have been on another machine
        draft.write_text(json.dumps(desired))
        os.replace(draft, self._file)
