"""What the check of a batch finds, and that it finds nothing in what is right."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.batch.check import Rule, Snapshot, check_files, check_snapshots
from tests.chaos.batch.lines import DrawnLine
from tests.chaos.findings import Finding

LINES = [
    DrawnLine(1, "good", "ab", 2),
    DrawnLine(2, "not JSON", "x", 1),
    DrawnLine(3, "unknown model", "x", 1),
    DrawnLine(4, "another endpoint", "x", 1),
    DrawnLine(5, "good", "c", 1),
]
SNAPSHOT = Snapshot("in_progress", 5, 1, 1, stored_before=1, ended_after=2)


def answer(line: DrawnLine) -> dict[str, Any]:
    body = {"choices": [{"text": line.text}], "usage": {"completion_tokens": line.tokens}}
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {"id": "x", "custom_id": line.custom_id, "response": response, "error": None}


OUTPUT = [answer(LINES[0]), answer(LINES[4])]
ERRORS = [
    {"custom_id": None, "line": 2, "response": None, "error": {"code": "c"}},
    {"custom_id": "line-3", "line": 3, "response": {"status_code": 404}, "error": None},
    {"custom_id": "line-4", "line": 4, "response": None, "error": {"code": "c"}},
]


def rules(findings: Any) -> set[Rule]:
    assert all(isinstance(finding, Finding) for finding in findings)
    return {finding.rule for finding in findings}


def test_nothing_is_found_in_what_is_right() -> None:
    assert list(check_files(LINES, OUTPUT, ERRORS)) == []
    first = Snapshot("validating", 0, 0, 0, 0, 0)
    assert (
        list(check_snapshots([first, SNAPSHOT, SNAPSHOT, replace(SNAPSHOT, completed=2)], 5, 3))
        == []
    )


@pytest.mark.parametrize(
    ("output", "errors", "rule"),
    [
        pytest.param(OUTPUT[:1], ERRORS, Rule.LOST, id="an answer is missing"),
        pytest.param(OUTPUT, ERRORS[1:], Rule.LOST, id="an error is missing"),
        pytest.param([*OUTPUT, OUTPUT[0]], ERRORS, Rule.DOUBLED, id="an answer is there again"),
        pytest.param(OUTPUT, [*ERRORS, ERRORS[0]], Rule.DOUBLED, id="an error is there again"),
        pytest.param(
            [*OUTPUT, answer(LINES[3])], ERRORS, Rule.ANSWERS, id="an answer that nobody expects"
        ),
    ],
)
def test_a_line_that_is_not_answered_once_is_found(output: Any, errors: Any, rule: Rule) -> None:
    assert rule in rules(list(check_files(LINES, output, errors)))


def test_the_answer_to_another_line_is_found() -> None:
    swapped = copy.deepcopy(OUTPUT)
    swapped[0]["response"]["body"], swapped[1]["response"]["body"] = (
        swapped[1]["response"]["body"],
        swapped[0]["response"]["body"],
    )
    assert rules(list(check_files(LINES, swapped, ERRORS))) == {Rule.ANSWERS}


def test_a_form_that_is_not_documented_is_found() -> None:
    for change in ({"error": "x"}, {"more": 1}, {"response": None}):
        assert rules(list(check_files(LINES, [OUTPUT[0] | change, OUTPUT[1]], ERRORS))) == {
            Rule.ANSWERS
        }
    assert rules(list(check_files(LINES, OUTPUT, [ERRORS[0], ERRORS[1] | {"error": 1}, ERRORS[2]])))


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(replace(SNAPSHOT, total=4), id="another total"),
        pytest.param(
            replace(SNAPSHOT, completed=3, failed=3, ended_after=9), id="more than there are"
        ),
        pytest.param(replace(SNAPSHOT, stored_before=3), id="stored and not counted"),
        pytest.param(replace(SNAPSHOT, completed=2, ended_after=1), id="counted and not ended"),
        pytest.param(replace(SNAPSHOT, failed=0, completed=1), id="less than before"),
        pytest.param(replace(SNAPSHOT, failed=4), id="more failures than wrong lines"),
    ],
)
def test_counts_that_cannot_be_are_found(snapshot: Snapshot) -> None:
    assert rules(list(check_snapshots([SNAPSHOT, snapshot], 5, 3))) == {Rule.COUNTS}
