"""One panel of a Grafana dashboard: what it asks, and all that a reader needs to understand the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

HEIGHTS = {"timeseries": 8, "stat": 4, "bargauge": 8}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED = "green", "#EAB839", "red"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str  # may name labels, as in {{worker}}


@dataclass(frozen=True, slots=True)
class Steps:
    """Where a value stops being good, and where it is bad. `bad` below `warn`: small values are the bad ones."""

    warn: float
    bad: float

    def json(self) -> list[dict[str, object]]:
        if self.bad < self.warn:
            return _steps((None, RED), (self.bad, YELLOW), (self.warn, GREEN))
        return _steps((None, GREEN), (self.warn, YELLOW), (self.bad, RED))


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    description: str
    unit: str  # Grafana's name of it
    queries: Sequence[Query]
    kind: Literal["timeseries", "stat", "bargauge"] = "timeseries"
    width: int = 8  # of 24
    steps: Steps | None = None
    stacked: bool = False
    bars: bool = False  # of things that happen now and then
    most: float | None = None  # the top of the scale

    @property
    def height(self) -> int:
        return HEIGHTS[self.kind]

    def json(self, panel_id: int, x: int, y: int) -> dict[str, object]:
        return {
            "id": panel_id,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
            "targets": [self._target(index, query) for index, query in enumerate(self.queries)],
        }

    def _defaults(self) -> dict[str, object]:
        steps = self.steps.json() if self.steps is not None else _steps((None, GREEN))
        defaults: dict[str, object] = {"unit": self.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.most is not None:
            defaults["max"] = self.most
        if self.kind != "timeseries":
            return defaults | {"color": {"mode": "thresholds"}}
        custom: dict[str, object] = {
            "drawStyle": "bars" if self.bars else "line",
            "lineWidth": 1,
            "fillOpacity": 60 if self.bars else 30 if self.stacked else 10,
            "showPoints": "never",
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "off" if self.steps is None else "dashed"},
        }
        return defaults | {"color": {"mode": "palette-classic"}, "custom": custom}

    def _options(self) -> dict[str, object]:
        if self.kind == "timeseries":
            legend = {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"], "showLegend": True}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        reduced = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        if self.kind == "stat":
            return {**reduced, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
        return {**reduced, "displayMode": "basic", "orientation": "horizontal"}

    def _target(self, index: int, query: Query) -> dict[str, object]:
        return {"refId": chr(ord("A") + index), "expr": query.expr, "legendFormat": query.legend, "datasource": SOURCE}


def _steps(*steps: tuple[float | None, str]) -> list[dict[str, object]]:
    return [{"value": value, "color": color} for value, color in steps]
