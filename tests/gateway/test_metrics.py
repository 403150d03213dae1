"""The gateway's metrics: what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path

from rose_gateway.metrics import LIMITS, Metrics

DOC = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_the_page_lists_every_metric() -> None:
    # given: one that has answered a request
    metrics = Metrics()
    metrics.started("GET", "/v1/models", 0.001)
    metrics.answered("GET", "/v1/models", 200)
    # when
    rows = set()
    for family in metrics.registry.collect():
        end = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        shown = ", ".join(f"`{label}`" for label in labels if label != "le")
        rows.add(f"| `{family.name}{end}` | {family.type} | {shown} | {family.documentation} |")
    # then
    listed = re.findall(r"^\| `rose_gateway_.*$", DOC, re.MULTILINE)
    assert set(listed) == rows
    assert len(listed) == len(rows)
    assert all(f"`{limit}`" in DOC for limit in LIMITS)
