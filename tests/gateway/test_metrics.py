"""The gateway's metrics: what the page says of them."""

import re
from pathlib import Path

from rose_gateway.metrics import LIMITS, Metrics
from tests.support.metric_samples import rows_of_page

DOC = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_the_page_lists_every_metric() -> None:
    # given: one that has answered a request
    metrics = Metrics()
    metrics.started("GET", "/v1/models", 0.001)
    metrics.answered("GET", "/v1/models", 200)
    # then
    listed = re.findall(r"^\| `rose_gateway_.*$", DOC, re.MULTILINE)
    assert sorted(listed) == sorted(rows_of_page(metrics.registry))
    assert all(f"`{limit}`" in DOC for limit in LIMITS)
