"""The dashboards' layout, and that what lies in the repository is what their code makes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from deploy.dashboards.__main__ import generated
from deploy.dashboards.all import DASHBOARDS
from deploy.dashboards.dashboard import Dashboard, Row
from deploy.dashboards.panel import Panel, Query, Steps

every_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)


def panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    found: Any = dashboard.json()["panels"]
    return list(found)


def test_the_files_in_the_repository_are_those_that_the_code_makes() -> None:
    for path, text in generated().items():
        assert path.read_text() == text, f"{path.name} is old: run `python -m deploy.dashboards`"


def test_there_are_five_with_addresses_of_their_own() -> None:
    assert len({dashboard.json()["uid"] for dashboard in DASHBOARDS}) == 5


@every_dashboard
def test_no_panel_lies_on_another_or_beyond_the_edge(dashboard: Dashboard) -> None:
    places = [panel["gridPos"] for panel in panels(dashboard)]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


@every_dashboard
def test_every_panel_says_what_it_shows_in_which_unit_and_names_each_line(dashboard: Dashboard) -> None:
    asked = [panel for panel in panels(dashboard) if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels(dashboard)}) == len(panels(dashboard))
    for panel in asked:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert all(legends), panel["title"]
        assert len(set(legends)) == len(legends), panel["title"]


@every_dashboard
def test_every_query_is_of_the_chosen_model(dashboard: Dashboard) -> None:
    for query in dashboard.queries:
        num_selectors = query.expr.count("{")
        assert num_selectors, query
        assert query.expr.count('{model_name=~"$model"') == num_selectors, query


@pytest.mark.parametrize(
    ("steps", "colors"),
    [(Steps(warn=1, bad=2), ["green", "#EAB839", "red"]), (Steps(0.9, 0.5), ["red", "#EAB839", "green"])],
)
def test_colours_go_from_good_to_bad_in_either_direction(steps: Steps, colors: list[str]) -> None:
    assert [step["color"] for step in steps.json()] == colors
    bounds = [step["value"] for step in steps.json()]
    assert bounds == [None, *sorted((steps.warn, steps.bad))]


def test_a_line_of_panels_is_as_high_as_its_highest() -> None:
    def panel(kind: Any, width: int) -> Panel:
        return Panel("a title", "a text", "s", [Query("up", "a line")], kind=kind, width=width)

    row = Row("a row", [panel("stat", 12), panel("timeseries", 12), panel("stat", 12)])
    places = [panel["gridPos"] for panel in panels(Dashboard("name", "title", [row, row]))]
    assert [(place["x"], place["y"]) for place in places[:4]] == [(0, 0), (0, 1), (12, 1), (0, 9)]
    assert places[4]["y"] == 13
