"""What the engine's benchmarks print: a figure a row, over all rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table


def spread(title: str, rows: Iterable[tuple[str, Sequence[float], int]]) -> Table:
    """Median, minimum and maximum of each row's `(label, values, digits)`."""
    table = Table(title=title)
    for column in ("", "median", "min", "max"):
        table.add_column(column, justify="right" if column else "left")
    for label, values, digits in rows:
        figures = (statistics.median(values), min(values), max(values))
        table.add_row(label, *(f"{value:.{digits}f}" for value in figures))
    return table
