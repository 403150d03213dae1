"""What `rose doctor` finds, and how it is printed."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from rich.table import Table
from rich.text import Text

from rose_cli.output import print_json, print_text
from rose_cli.tables import console


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

#: Widths of the first two columns.
_VERDICT, _CHECK = 6, 12


def print_findings(findings: Iterable[Finding], *, as_json: bool) -> bool:
    """Print each as it comes; False when one of them is a failure.

    A line each, but on a terminal, where a long one wraps beside its name and what to do about it
    begins on a line of its own.
    """
    well = True
    for finding in findings:
        well = well and finding.verdict is not Verdict.FAIL
        if as_json:
            print_json(asdict(finding))
        else:
            _print_line(finding)
    return well


def _print_line(finding: Finding) -> None:
    if not console.is_terminal:
        todo = f": {finding.todo}" if finding.todo else ""
        name = f"{finding.verdict.value:<{_VERDICT}}{finding.check:<{_CHECK}}"
        print_text(f"{name}{finding.says}{todo}")
        return
    console.print(row_of(finding))


def row_of(finding: Finding) -> Table:
    line = Table.grid()
    line.add_column(width=_VERDICT, style=_STYLE[finding.verdict])
    line.add_column(width=_CHECK)
    line.add_column(overflow="fold")
    line.add_row(finding.verdict.value, finding.check, Text(finding.says))
    if finding.todo:
        line.add_row("", "", Text(f"-> {finding.todo}", style="bold"))
    return line
