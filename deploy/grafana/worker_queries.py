"""Queries of the workers' metrics, of the models that the dashboard shows.

The gauges of the queue are exported by one worker at a time, hence `max by`: during a change of
that worker there may be two of them, or none.
"""

from collections.abc import Sequence

from deploy.grafana.panels import Query
from deploy.grafana.promql import heat_map, quantiles, rate

MODELS = '{model=~"$model"}'


def rate_of(metric: str, by: str) -> str:
    return rate(metric, by, MODELS)


def queue_gauge(metric: str) -> str:
    return f"max by (model, queue) ({metric}{MODELS})"


def quantiles_of(
    metric: str, by: str = "model", asked: Sequence[float] = (0.5, 0.95, 0.99)
) -> list[Query]:
    return quantiles(metric, by, MODELS, asked)


def heat_map_of(metric: str, model: str = MODELS) -> list[Query]:
    return heat_map(metric, model)


def share(part: str, whole: str, by: str) -> str:
    return f"{rate_of(part, by)} / {rate_of(whole, by)}"


def mean(metric: str, by: str) -> str:
    return share(f"{metric}_sum", f"{metric}_count", by)


def occupancy(by: str) -> str:
    used, slots = f"rose_batch_sequences{MODELS}", f"rose_batch_capacity_sequences{MODELS}"
    return f"sum{by} ({used}) / sum{by} ({slots})"
