"""What panels ask of Prometheus. `[$__rate_interval]` is four scrapes at least."""

from collections.abc import Sequence

from deploy.grafana.panels import Query

_WINDOW = "[$__rate_interval]"


def rate(metric: str, by: str = "", where: str = "") -> str:
    """`by`: labels, with commas between; `where`: matchers in their braces."""
    labels = f" by ({by})" if by else ""
    return f"sum{labels} (rate({metric}{where}{_WINDOW}))"


def quantiles(
    metric: str, by: str = "", where: str = "", asked: Sequence[float] = (0.5, 0.9, 0.99)
) -> list[Query]:
    """A line for each quantile asked, and for each value of the label `by`."""
    buckets = rate(f"{metric}_bucket", f"{by}, le" if by else "le", where)
    legend = f"{{{{{by}}}}} " if by else ""
    return [
        Query(f"histogram_quantile({q}, {buckets})", f"{legend}p{round(q * 100)}") for q in asked
    ]


def heat_map(metric: str, where: str = "") -> list[Query]:
    return [Query(f"sum by (le) (increase({metric}_bucket{where}{_WINDOW}))", "{{le}}")]
