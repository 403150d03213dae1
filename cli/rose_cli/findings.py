"""What `rose doctor` finds, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from rich.text import Text

from rose_cli.common import out, print_json


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: Verdict
    says: str
    todo: str = ""
    """what to do about it; empty where all is well"""


def ok(check: str, says: str) -> Finding:
    return Finding(check, Verdict.OK, says)


def warn(check: str, says: str, todo: str) -> Finding:
    return Finding(check, Verdict.WARN, says, todo)


def fail(check: str, says: str, todo: str) -> Finding:
    return Finding(check, Verdict.FAIL, says, todo)


_STYLE = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def tell(findings: Iterable[Finding], *, as_json: bool) -> bool:
    """Print each as it comes, a line each; False when one of them is a failure."""
    well = True
    for finding in findings:
        well = well and finding.verdict is not Verdict.FAIL
        if as_json:
            print_json(asdict(finding))
            continue
        line = Text(f"{finding.verdict.value:<5}", style=_STYLE[finding.verdict])
        line.append(f"{finding.check:<11}", style="default")
        line.append(finding.says, style="default")
        if finding.todo:
            line.append(f": {finding.todo}", style="default")
        out.print(line, soft_wrap=True)
    return well
