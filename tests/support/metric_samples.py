"""What a page of metrics says."""

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(page: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(page: Samples, name: str, **labels: str) -> float:
    return page[name, frozenset(labels.items())]


def rows_of_page(registry: CollectorRegistry, *hidden: str) -> list[str]:
    """The rows that the page of metrics has for these, without `hidden` labels."""
    rows = []
    for family in registry.collect():
        end = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        shown = ", ".join(f"`{label}`" for label in labels if label not in ("le", *hidden))
        # What prometheus_client says of the type of an info is that it is a gauge.
        rows.append(f"| `{family.name}{end}` | {family.type} | {shown} | {family.documentation} |")
    return rows
