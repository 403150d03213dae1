"""What the commands of chaos print: lines on the way, and what broke in the end."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console

from tests.chaos.findings import Finding

_EXAMPLES = 5

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Ticker:
    """A line for each fault, and now and then one that says how far the run has come."""

    def __init__(self, every_s: float = 2.0) -> None:
        self._every_s = every_s
        self._began = self._next = time.monotonic()
        self._faults = 0

    def tick(
        self, progress: Callable[[], str], faults: Sequence[tuple[float, str]] = (), end: str = "\n"
    ) -> None:
        """`faults`: all of the run, each with its time."""
        now = time.monotonic()
        for _, what in faults[self._faults :]:
            err.print(f"{now - self._began:4.0f} s  {what}", markup=False)
        self._faults = len(faults)
        if now >= self._next:
            self._next = now + self._every_s
            err.print(f"{now - self._began:4.0f} s  {progress()}", end=end)


def drawn_seed(given: int | None) -> int:
    """Another each time, where none is given."""
    return random.SystemRandom().randrange(10**9) if given is None else given


def count_rules(rules: type[StrEnum], findings: Iterable[Finding]) -> dict[StrEnum, int]:
    """How often each rule was broken."""
    broken = Counter(finding.rule for finding in findings)
    return {rule: broken[rule] for rule in rules}


def count_names(rules: type[StrEnum], findings: Iterable[Finding]) -> dict[str, int]:
    """As `count_rules`, by the rules' names."""
    return {rule.name.lower(): n for rule, n in count_rules(rules, findings).items()}


def examples(findings: Iterable[Finding]) -> dict[StrEnum, list[Finding]]:
    """Some of each rule."""
    found: dict[StrEnum, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.rule, []).append(finding)
    return {rule: broken[:_EXAMPLES] for rule, broken in found.items()}


def tell(
    findings: Sequence[Finding], clues: Callable[[Finding], Iterable[str]] = lambda _: ()
) -> None:
    """What broke, with examples and what is known of each."""
    broken = Counter(finding.rule for finding in findings)
    for rule, some in examples(findings).items():
        err.print(f"\n{rule}: {broken[rule]}", style="bold red", markup=False)
        for finding in some:
            err.print(f"- {finding.detail}", markup=False)
            for line in clues(finding):
                err.print(f"    {line}", markup=False)


def tell_result(result: Mapping[str, Any], findings: Sequence[Finding], *, as_json: bool) -> None:
    """What came out, and what broke."""
    if as_json:
        out.print_json(data=result, indent=None)
    else:
        for name, value in result.items():
            out.print(f"{name}: {value}", markup=False)
    tell(findings)
