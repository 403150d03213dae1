"""What was measured, round by round, and the targets it is held to."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: (metric, contender)
Row = tuple[str, str]


class Target(NamedTuple):
    text: str
    accepts: Callable[[float], bool]


def at_least(limit: float) -> Target:
    return Target(f"at least {limit}", lambda value: value >= limit)


def at_most(limit: float) -> Target:
    return Target(f"at most {limit}", lambda value: value <= limit)


def below(limit: float) -> Target:
    return Target(f"below {limit}", lambda value: value < limit)


def above(limit: float) -> Target:
    return Target(f"above {limit}", lambda value: value > limit)


@dataclass(frozen=True, slots=True)
class Check:
    """A target, and what was reached."""

    what: str
    reached: str
    target: str
    met: bool


@dataclass(slots=True)
class Board:
    """The figures of one case. `base`: the contender that all others are compared with."""

    title: str
    base: str | None = None
    rows: dict[Row, list[float]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, contender: str, figures: Mapping[str, float]) -> None:
        """One round's figures by metric, which names its unit: "submit, jobs/s"."""
        for metric, value in figures.items():
            self.rows.setdefault((metric, contender), []).append(value)

    def contenders(self, metric: str) -> list[str]:
        return [name for measured, name in self.rows if measured == metric]

    def median(self, metric: str, contender: str) -> float:
        return statistics.median(self.rows[metric, contender])

    def ratios(self, numerator: Row, denominator: Row) -> list[float]:
        """Round by round, since the machine's speed drifts between rounds.

        A contender that takes part in fewer rounds takes part in the first ones.
        """
        pairs = zip(self.rows[numerator], self.rows[denominator], strict=False)
        return [a / b for a, b in pairs]

    def check_ratio(self, what: str, numerator: Row, denominator: Row, target: Target) -> None:
        """Holds the median of the rounds' ratios to the target, where both were measured."""
        if numerator in self.rows and denominator in self.rows:
            self._check(what, self.ratios(numerator, denominator), target)

    def check_figure(self, row: Row, target: Target) -> None:
        self._check(row[0], self.rows[row], target)

    def check_every(self, row: Row, target: Target) -> None:
        """Holds each round to the target, not their median."""
        values = self.rows[row]
        reached = f"{min(values):g} to {max(values):g}"
        self.checks.append(Check(row[0], reached, target.text, all(map(target.accepts, values))))

    def _check(self, what: str, values: Sequence[float], target: Target) -> None:
        median = statistics.median(values)
        reached = f"{median:.2f} ({min(values):.2f} to {max(values):.2f})"
        self.checks.append(Check(what, reached, target.text, target.accepts(median)))


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that at least `percent` of all do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
