"""What must be true of a batch: at every snapshot, and of its files."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.chaos.batch.lines import DrawnLine
from tests.chaos.findings import Finding


class Rule(StrEnum):
    LOST = "lost: every line is answered"
    DOUBLED = "doubled: no line is answered, asked or counted twice"
    ANSWERS = "answers: each is its line's, in the documented form"
    COUNTS = "counts: right at every snapshot"
    ENDS = "ends: completed, with its files, and nothing is left in the queue"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A batch at one moment, and what was true in Redis just before and just after it."""

    status: str
    total: int
    completed: int
    failed: int
    stored_before: int
    """lines whose answers are stored"""
    ended_after: int
    """jobs that have ended"""


def check_snapshots(snapshots: Sequence[Snapshot], total: int, wrong: int) -> Iterator[Finding]:
    """`total`: lines of the batch; `wrong`: those that are never asked."""
    before: Snapshot | None = None
    for number, snapshot in enumerate(snapshots):
        for finding in _check_snapshot(snapshot, before, total, wrong):
            yield Finding(Rule.COUNTS, f"snapshot {number}, {snapshot}: {finding}")
        before = snapshot


def _check_snapshot(
    snapshot: Snapshot, before: Snapshot | None, total: int, wrong: int
) -> Iterator[str]:
    ended = snapshot.completed + snapshot.failed
    if snapshot.total not in ((0, total) if snapshot.status == "validating" else (total,)):
        yield f"the total is not {total}"
    if ended > total:
        yield "more lines have ended than there are"
    if ended < snapshot.stored_before:
        yield "lines are stored that do not count"
    if snapshot.completed > snapshot.ended_after:
        yield "more lines are completed than jobs have ended"
    if snapshot.failed > wrong:
        yield f"only {wrong} lines are wrong"
    if before is None:
        return
    if snapshot.completed < before.completed or snapshot.failed < before.failed:
        yield f"less than at the snapshot before it: {before}"


def says_text(line: DrawnLine, body: Any) -> bool:
    """Whether a completion is the line's. Raises: KeyError, TypeError, IndexError: it is none."""
    said = body["usage"]["completion_tokens"], body["choices"][0]["text"]
    return said == (line.tokens, line.text)


def check_files(
    lines: Sequence[DrawnLine],
    output: Sequence[Any],
    errors: Sequence[Any],
    says: Callable[[DrawnLine, Any], bool] = says_text,
) -> Iterator[Finding]:
    """`output`, `errors`: what the lines of the files say. `says`: as `says_text`."""
    good = {line.custom_id: line for line in lines if line.kind == "good"}
    wrong = {line.number: line for line in lines if line.kind != "good"}
    yield from _once(Counter(record.get("custom_id") for record in output), set(good), "output")
    yield from _once(Counter(record.get("line") for record in errors), set(wrong), "errors")
    for record in output:
        if (line := good.get(record.get("custom_id"))) is not None:
            yield from _answer(line, record, says)
    for record in errors:
        if (line := wrong.get(record.get("line"))) is not None:
            yield from _error(line, record)


def _once(found: Counter[Any], expected: set[Any], where: str) -> Iterator[Finding]:
    if lost := expected - found.keys():
        yield Finding(Rule.LOST, f"{where}: {len(lost)} are missing, as {sorted(lost)[:3]}")
    if odd := found.keys() - expected:
        yield Finding(Rule.ANSWERS, f"{where}: {len(odd)} that nobody expects, as {list(odd)[:3]}")
    if doubled := [name for name, count in found.items() if count > 1]:
        yield Finding(Rule.DOUBLED, f"{where}: {len(doubled)} are there again: {doubled[:3]}")


def _answer(
    line: DrawnLine, record: Any, says: Callable[[DrawnLine, Any], bool]
) -> Iterator[Finding]:
    try:
        response = record["response"]
        is_right = (
            set(record) == {"id", "custom_id", "response", "error"}
            and record["error"] is None
            and response["status_code"] == 200
            and isinstance(response["request_id"], str)
            and says(line, response["body"])
        )
    except (KeyError, TypeError, IndexError):
        is_right = False
    if not is_right:
        yield Finding(Rule.ANSWERS, f"{line.custom_id}: {json.dumps(record)[:300]}")


def _error(line: DrawnLine, record: Any) -> Iterator[Finding]:
    has_response = record.get("response") is not None
    is_right = (
        record.get("custom_id") == (None if line.kind == "not JSON" else line.custom_id)
        and has_response == (line.kind == "unknown model")
        and has_response == (record.get("error") is None)
    )
    if has_response and record["response"].get("status_code") != 404:
        is_right = False
    if not is_right:
        yield Finding(Rule.ANSWERS, f"line {line.number}, {line.kind}: {json.dumps(record)[:300]}")
