"""The pools' desired sizes on disk, so that a controller that is started again wishes what the last one did.

Written whole or not at all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from cluster.fleet import desired_from
from cluster.spec import RoleName


class DesiredFile:
    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[RoleName, int] | None:
        """None when no controller ran before."""
        try:
            return desired_from(json.loads(self._file.read_text()))
        except FileNotFoundError:
            return None

    def write(self, desired: dict[RoleName, int]) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(desired))
        os.replace(draft, self._file)
