"""What broke a rule, for the runs whose rules are an enumeration of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Finding:
    rule: StrEnum
    detail: str


def show(console: Console, rules: Iterable[StrEnum], findings: Sequence[Finding]) -> None:
    """Some of the findings, by the rule that they break."""
    for rule in rules:
        broken = [finding for finding in findings if finding.rule is rule]
        if broken:
            console.print(f"\n{rule}: {len(broken)}", style="bold red", markup=False)
        for finding in broken[:_EXAMPLES]:
            console.print(f"- {finding.detail}", markup=False)
