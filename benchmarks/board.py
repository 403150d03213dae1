"""What was measured, round by round, and what is asked of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: (metric, contender)
Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement. `metric` names its unit: "submit, jobs/s"."""

    metric: str
    contender: str
    value: float


@dataclass(frozen=True, slots=True)
class Check:
    """A target, and what was reached beside it; a ratio is the median of the rounds' ratios."""

    what: str
    reached: str
    target: str
    met: bool


@dataclass(slots=True)
class Board:
    """The figures of one case. `base`: the contender to whom all others are compared."""

    title: str
    base: str | None = None
    rows: dict[Row, list[float]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, figures: Sequence[Figure]) -> None:
        for figure in figures:
            self.rows.setdefault((figure.metric, figure.contender), []).append(figure.value)

    def contenders(self, metric: str) -> list[str]:
        return [name for measured, name in self.rows if measured == metric]

    def median(self, metric: str, contender: str) -> float:
        return statistics.median(self.rows[metric, contender])

    def ratios(self, above: Row, below: Row) -> list[float]:
        """Round by round, since the machine's speed drifts between them.

        Who takes part in fewer rounds takes part in the first ones.
        """
        return [a / b for a, b in zip(self.rows[above], self.rows[below], strict=False)]

    def check_ratio(
        self, what: str, above: Row, below: Row, target: str, met: Callable[[float], bool]
    ) -> None:
        if above in self.rows and below in self.rows:
            ratios = self.ratios(above, below)
            middle = statistics.median(ratios)
            reached = f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            self.checks.append(Check(what, reached, target, met(middle)))

    def check_figure(self, what: str, row: Row, target: str, met: Callable[[float], bool]) -> None:
        values = self.rows[row]
        middle = statistics.median(values)
        reached = f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"
        self.checks.append(Check(what, reached, target, met(middle)))
