"""`python -m deploy.dashboards` writes what Grafana and Prometheus read: the dashboards' JSON, and the alert rules."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from deploy.dashboards.alerts import rules
from deploy.dashboards.all import DASHBOARDS

DEPLOY = Path(__file__).parents[1]
ALERTS_FILE = DEPLOY / "alerts.yml"


def generated() -> dict[Path, str]:
    """Each file's text."""
    folder = DEPLOY / "grafana" / "dashboards"
    files = {folder / f"{board.name}.json": json.dumps(board.json(), indent=1) + "\n" for board in DASHBOARDS}
    return {
        **files,
        ALERTS_FILE: "# Made by `python -m deploy.dashboards`.\n" + yaml.safe_dump(rules(), sort_keys=False),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
