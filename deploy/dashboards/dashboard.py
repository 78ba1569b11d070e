"""A Grafana dashboard of titled rows; panels are laid out from left to right, in lines of 24 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.dashboards.panel import SOURCE, Panel, Query
from deploy.dashboards.promql import Promql

COLUMNS = 24
GRAFANA = Promql("$__rate_interval", 'model_name=~"$model"')  # with the variables below
TAG = "pdserve"


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard; the first option is the default."""

    name: str
    label: str
    options: Sequence[str]

    def json(self) -> dict[str, object]:
        options = [{"text": o, "value": o, "selected": o == self.options[0]} for o in self.options]
        return {
            "name": self.name,
            "label": self.label,
            "type": "custom",
            "query": ",".join(self.options),
            "options": options,
            "current": options[0],
            "hide": 0,
        }


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str  # of its file, and of its uid
    title: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()

    @property
    def queries(self) -> list[Query]:
        return [query for row in self.rows for panel in row.panels for query in panel.queries]

    def json(self) -> dict[str, object]:
        return {
            "uid": f"pdserve-{self.name}",
            "title": f"pdserve: {self.title}",
            "tags": [TAG],
            "timezone": "browser",
            "schemaVersion": 39,
            "version": 1,
            "refresh": "5s",
            "time": {"from": "now-15m", "to": "now"},
            "links": [{"type": "dashboards", "tags": [TAG], "title": "pdserve", "asDropdown": True, "keepTime": True}],
            "templating": {"list": [*_SHARED_VARIABLES, *(variable.json() for variable in self.variables)]},
            "annotations": {"list": []},
            "panels": self._panels(),
        }

    def _panels(self) -> list[dict[str, object]]:
        panels: list[dict[str, object]] = []
        y = 0
        for row in self.rows:
            grid = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "row",
                    "title": row.title,
                    "collapsed": False,
                    "gridPos": grid,
                    "panels": [],
                }
            )
            x, y, line = 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, line = 0, y + line, 0
                panels.append(panel.json(len(panels) + 1, x, y))
                x, line = x + panel.width, max(line, panel.height)
            y += line
        return panels


_SHARED_VARIABLES: list[dict[str, object]] = [
    {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    },
    {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(pdserve_requests_in_flight, model_name)", "refId": "model"},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    },
]
