"""The dashboards as Grafana would read them, and the check that keeps them true."""

import json
import re
from typing import Any

import pytest

from deploy.expressions import exported, of_dashboards, of_rules, unknown
from deploy.grafana import __main__ as generator
from deploy.grafana.dashboards import DASHBOARDS
from deploy.grafana.panels import Dashboard, Panel, Query, Row
from rose_gateway.metrics import Metrics as GatewayMetrics
from rose_worker.engine import ModelInfo
from rose_worker.metrics import Metrics

BOARDS = [board.to_json() for board in DASHBOARDS]
METRICS = Metrics(ModelInfo("any", 1, None, "cpu", "float32"), capacity=1).registry
OF_GATEWAYS = GatewayMetrics().registry


def test_they_are_as_written_and_name_what_is_exported() -> None:
    assert generator.problems(generator.files()) == []


def test_a_stale_file_is_noticed() -> None:
    # given
    (path, text), *others = generator.files().items()
    # when
    (problem,) = generator.problems({path: text + " ", **dict(others)})
    # then
    assert problem.startswith(f"{path}: not as written")


def test_a_query_for_what_nobody_exports_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    queries = [Query("rate(rose_tokens_total[1m])"), Query('rose_ready{job="rose_else"}')]
    wrong = Dashboard("x", "X", "", Row("r", Panel("p", "", queries, "s")))
    monkeypatch.setattr("deploy.expressions.DASHBOARDS", (wrong,))
    # then
    assert unknown(METRICS, OF_GATEWAYS) == ["X / p: nothing exports rose_tokens_total"]


def test_every_metric_is_shown_or_recorded() -> None:
    shown = {name for one in (*of_dashboards(), *of_rules()) for name in one.metrics}
    names = exported(METRICS, OF_GATEWAYS)
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in names}
    assert families - {re.sub("_(bucket|count|sum)$", "", name) for name in shown} == set()


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_panels_have_numbers_places_and_words(board: dict[str, Any]) -> None:
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
            assert panel["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_variables_are_those_that_are_used(board: dict[str, Any]) -> None:
    given = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)", json.dumps([board["panels"], board["templating"]])))
    assert used - {"__rate_interval", "__all"} == given


def test_every_rate_is_over_grafanas_own_interval() -> None:
    for one in of_dashboards():
        assert set(re.findall(r"\[(.*?)\]", one.promql)) <= {"$__rate_interval"}, one.where
