"""A failover excuses what concerns the jobs around it, and never what a subscriber was given."""

from pathlib import Path

import pytest

from tests.chaos.evidence import Evidence
from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.journal import Journal
from tests.chaos.losses import numbers_near, without_losses
from tests.chaos.plan import Plan

NEAR, FAR = 1, 2


@pytest.mark.parametrize(
    ("finding", "failovers", "excused"),
    [
        (Finding(Invariant.LOST, "no end came", NEAR), True, True),
        (Finding(Invariant.LOST, "no end came", FAR), True, False),
        (Finding(Invariant.LOST, "no end came", NEAR), False, False),
        (Finding(Invariant.DOUBLED, "token 3 came twice", NEAR), True, False),
        (Finding(Invariant.DOUBLED, "submitted as a and b", NEAR, missing=True), True, True),
        (Finding(Invariant.SEAMS, "token 2 is 9, undisturbed 7", NEAR), True, False),
        (Finding(Invariant.DEAD_LETTERS, "none for x", missing=True), True, True),
        (Finding(Invariant.EMPTY, "1 entry"), True, False),
    ],
)
def test_what_a_failover_excuses(finding: Finding, failovers: bool, excused: bool) -> None:
    # given
    evidence = Evidence(plan=Plan(1, 10), drain_limit_s=1.0)
    evidence.failovers = [(10.0, 12.0)] if failovers else []
    evidence.near_failovers = frozenset({NEAR})
    # then
    violations, losses = without_losses(evidence, [finding])
    assert (losses if excused else violations) == [finding]
    assert not (violations if excused else losses)


def test_who_was_near_a_failover(tmp_path: Path) -> None:
    # given
    submitted = Journal(tmp_path / "submitted-0.jsonl")
    submitted.write(1, "a", 9.5)
    submitted.write(2, "b", 30.0)
    submitted.write(3, "c", 2.0)
    Journal(tmp_path / "delivered-0.jsonl").write(3, "c", 13.0, {"type": "tokens"})
    # then
    assert numbers_near(tmp_path, [(10.0, 12.0)]) == {1, 3}
    assert numbers_near(tmp_path, []) == set()
