"""The Grafana dashboard asks for metrics that the league has."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from league.queries.status import build_status
from league.state import LeagueState
from workers.monitoring.exposition import league_metrics

BOARD = json.loads((Path(__file__).parents[3] / "deploy" / "grafana" / "league.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
METRICS = {metric.name: metric.kind for metric in league_metrics(build_status(LeagueState(), {}, {}, 0))}


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_names_metrics_of_the_exposition_and_takes_rates_of_counters_alone(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        named = re.findall(r"\bleague_\w+", target["expr"])
        assert named
        assert set(named) <= set(METRICS)
        rated = re.findall(r"rate\((\w+)", target["expr"])
        assert all(METRICS[name] == "counter" for name in rated)
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert panel["description"].endswith(".")


def test_panels_have_names_of_their_own_and_do_not_cover_one_another() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = (one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]) or (
            one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )
        assert apart


def test_every_panel_asks_the_source_that_the_reader_chose() -> None:
    (variable,) = BOARD["templating"]["list"]
    uid = f"${{{variable['name']}}}"
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {uid}
