"""What the commands of chaos do alike: lines on the way, what broke in the end, the exit status."""

import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from rich.console import Console

from rose.errors import RoseError
from tests.chaos.findings import Finding
from tests.support.nursery import forking

_EXAMPLES = 5


class Outcome(Protocol):
    """What a run has found."""

    findings: list[Finding]


_Outcome = TypeVar("_Outcome", bound=Outcome)

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


def run_and_tell(
    name: str,
    run: Callable[[Path], _Outcome],
    result: Callable[[_Outcome], Mapping[str, Any]],
    *,
    as_json: bool,
) -> NoReturn:
    """Run in a folder of its own, which is removed, and say what came out. Exit status 1: a rule
    was broken; 2: the processes did not start."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix=f"rose-{name}-"))
    try:
        with forking():
            outcome = run(folder)
    except RoseError as error:
        err.print(f"chaos: {error}")
        sys.exit(2)
    finally:
        shutil.rmtree(folder)
    tell_result(result(outcome), outcome.findings, as_json=as_json)
    sys.exit(1 if outcome.findings else 0)
