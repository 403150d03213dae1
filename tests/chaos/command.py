"""What the commands of chaos print: lines on the way, and what broke in the end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from tests.chaos.findings import Finding, Rules

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


def counts(rules: Rules, findings: Iterable[Finding]) -> dict[str, int]:
    """How often each rule was broken."""
    broken = Counter(finding.rule for finding in findings)
    return {rule.name.lower(): broken[rule] for rule in rules}


def tell(
    result: Mapping[str, Any], rules: Rules, findings: Sequence[Finding], *, as_json: bool
) -> None:
    """What came out, and some of the findings by the rule that they break."""
    if as_json:
        out.print_json(data=result, indent=None)
    else:
        for name, value in result.items():
            out.print(f"{name}: {value}", markup=False)
    for rule in rules:
        broken = [finding for finding in findings if finding.rule is rule]
        if broken:
            err.print(f"\n{rule}: {len(broken)}", style="bold red", markup=False)
        for finding in broken[:_EXAMPLES]:
            err.print(f"- {finding.detail}", markup=False)
