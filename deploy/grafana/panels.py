"""Panels and dashboards as Grafana reads them: only what ours need of its JSON.

Panels flow from left to right in a grid of 24 columns, as high as the highest of their line; each
row begins a new line. Numbers and places follow from the order, so nothing is counted by hand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_COLUMNS = 24
#: Of the JSON: Grafana 10.4 and newer.
_SCHEMA = 39
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: Columns of a table that tell nothing.
_HIDDEN = {
    "id": "organize",
    "options": {"excludeByName": dict.fromkeys(("Time", "Value", "__name__", "job"), True)},
}

_DATASOURCE_VARIABLE = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
}
_MODELS = "label_values(rose_batch_capacity_sequences, model)"
_MODEL_VARIABLE = {
    "name": "model",
    "label": "Model",
    "type": "query",
    "datasource": _DATASOURCE,
    "definition": _MODELS,
    "query": {"query": _MODELS, "refId": "model"},
    "refresh": 2,
    "sort": 1,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": ["All"], "value": ["$__all"]},
}

Kind = Literal["timeseries", "stat", "heatmap", "table"]


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`unit` is Grafana's name for it. `steps` maps thresholds to colours, the lowest first.

    Parts of a whole may be `stacked`; `max` fixes the top of the axis.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    steps: Mapping[float, str] = field(default_factory=dict)
    stacked: bool = False
    max: float | None = None

    def to_json(self, number: int, x: int, y: int) -> dict[str, Any]:
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": _DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [
                self._target(query, ref) for query, ref in zip(self.queries, "ABCD", strict=False)
            ],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
            **({"transformations": [_HIDDEN]} if self.kind == "table" else {}),
        }

    def _target(self, query: Query, ref: str) -> dict[str, Any]:
        now = self.kind in ("stat", "table")
        return {
            "refId": ref,
            "datasource": _DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "format": {"heatmap": "heatmap", "table": "table"}.get(self.kind, "time_series"),
            "instant": now,
            "range": not now,
        }

    def _defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {"unit": self.unit, "min": 0}
        if self.max is not None:
            defaults["max"] = self.max
        if self.steps:
            steps = [
                {"color": colour, "value": value if n else None}
                for n, (value, colour) in enumerate(self.steps.items())
            ]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if self.kind == "timeseries":
            defaults["custom"] = {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 30 if self.stacked else 8,
                "showPoints": "never",
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            }
        return defaults

    def _options(self) -> dict[str, Any]:
        if self.kind == "timeseries":
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        if self.kind == "stat":
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "background" if self.steps else "value",
                "graphMode": "none",
                "textMode": "auto",
            }
        if self.kind == "heatmap":
            return {
                "calculate": False,
                "cellGap": 1,
                "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
                "yAxis": {"unit": self.unit, "axisPlacement": "left"},
                "tooltip": {"mode": "single", "yHistogram": True},
                "legend": {"show": True},
            }
        return {"showHeader": True}


def stat(
    title: str,
    description: str,
    expr: str,
    unit: str = "short",
    steps: Mapping[float, str] | None = None,
) -> Panel:
    """One number; eight of them fill a line."""
    query = Query(expr)
    return Panel(title, description, [query], unit, "stat", width=3, height=4, steps=steps or {})


class Row:
    def __init__(self, title: str, *panels: Panel) -> None:
        self.title, self.panels = title, panels


class Dashboard:
    def __init__(self, name: str, title: str, description: str, *rows: Row) -> None:
        """`name` of its file, and with `rose-` before it, its identity in Grafana."""
        self.name, self.title, self.description, self.rows = name, title, description, rows

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]

    def to_json(self) -> dict[str, Any]:
        return {
            "uid": f"rose-{self.name}",
            "title": self.title,
            "description": self.description,
            "tags": ["roseinfer"],
            "schemaVersion": _SCHEMA,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "5s",
            "time": {"from": "now-30m", "to": "now"},
            "timezone": "browser",
            "links": [
                {
                    "type": "dashboards",
                    "title": "roseinfer",
                    "tags": ["roseinfer"],
                    "keepTime": True,
                    "includeVars": True,
                }
            ],
            "templating": {"list": self._variables()},
            "annotations": {"list": []},
            "panels": list(self._laid_out()),
        }

    def _variables(self) -> list[dict[str, Any]]:
        queries = [query.expr for panel in self.panels for query in panel.queries]
        of_models = any("$model" in expr for expr in queries)
        return [_DATASOURCE_VARIABLE, *([_MODEL_VARIABLE] if of_models else [])]

    def _laid_out(self) -> Iterator[dict[str, Any]]:
        number, y = 1, 0
        for row in self.rows:
            yield {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
            }
            number, y, x, highest = number + 1, y + 1, 0, 0
            for panel in row.panels:
                if x + panel.width > _COLUMNS:
                    x, y, highest = 0, y + highest, 0
                yield panel.to_json(number, x, y)
                number, x, highest = number + 1, x + panel.width, max(highest, panel.height)
            y += highest
