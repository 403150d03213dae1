"""Every PromQL expression that is shipped, and what the metrics in it are called."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from deploy.grafana.dashboards import DASHBOARDS

RULES = Path(__file__).parent / "prometheus" / "rules"

_STRING = re.compile(r'"[^"]*"')
_METRIC = re.compile(r"\brose[_:][a-z0-9_:]+")


@dataclass(frozen=True, slots=True)
class Expression:
    where: str
    """the panel or the rule"""
    promql: str
    """a panel's with Grafana's variables in it"""

    @property
    def metrics(self) -> set[str]:
        """Ours: those of Prometheus itself have other names."""
        return set(_METRIC.findall(_STRING.sub("", self.promql)))

    @property
    def plain(self) -> str:
        """As Grafana would send it: all models, and an interval of a minute."""
        return self.promql.replace("$model", ".*").replace("$__rate_interval", "1m")


def of_dashboards() -> Iterator[Expression]:
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                yield Expression(f"{dashboard.title} / {panel.title}", query.expr)


def rules(kind: str) -> Iterator[dict[str, Any]]:
    """The rules as they stand in the files; `kind`: record or alert."""
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from (rule for rule in group["rules"] if kind in rule)


def of_rules() -> Iterator[Expression]:
    for kind in ("record", "alert"):
        for rule in rules(kind):
            yield Expression(f"{kind} {rule[kind]}", rule["expr"])


def exported(*registries: CollectorRegistry) -> set[str]:
    """What can be asked for: the names of samples, and of what the rules record."""
    names = {rule["record"] for rule in rules("record")}
    for family in (family for registry in registries for family in registry.collect()):
        ends = {
            "counter": ("_total",),
            "histogram": ("_bucket", "_count", "_sum"),
            "info": ("_info",),
        }.get(family.type, ("",))
        names.update(family.name + end for end in ends)
    return names


def unknown(*registries: CollectorRegistry) -> list[str]:
    """Expressions that name a metric which nobody exports, and which one."""
    known = exported(*registries)
    return [
        f"{expression.where}: nothing exports {', '.join(sorted(missing))}"
        for expression in (*of_dashboards(), *of_rules())
        if (missing := expression.metrics - known)
    ]
