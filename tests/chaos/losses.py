"""What a failover to a replica may lose, which is stated and counted, and no violation.

Redis replicates asynchronously: what was written in the last moment before the primary died may be
gone. A job may be forgotten or begin again, a key or a dead letter be lost. What a subscriber is
given stays right all the same: no token twice, out of order, or of another text.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tests.chaos import journal
from tests.chaos.evidence import Evidence
from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.spans import Spans

#: A job that had to do with Redis so shortly before or after.
_BEFORE_S = 1.0
_AFTER_S = 4.0
_MAY_BE_LOST = {
    Invariant.LOST,
    Invariant.RAISED,
    Invariant.OUTCOMES,
    Invariant.LOG,
    Invariant.MOVED,
    Invariant.DEADLINES,
    Invariant.TAKEOVER,
    Invariant.ORDER,
    Invariant.CROWD,
}


def without_losses(
    evidence: Evidence, findings: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """The violations, and what was lost with a failover."""
    violations: list[Finding] = []
    losses: list[Finding] = []
    for finding in findings:
        excused = finding.missing or finding.rule in _MAY_BE_LOST
        concerned = finding.number is None or finding.number in evidence.near_failovers
        is_loss = bool(evidence.failovers) and excused and concerned
        (losses if is_loss else violations).append(finding)
    return violations, losses


def numbers_near(folder: Path, failovers: Sequence[tuple[float, float]]) -> frozenset[int]:
    """The jobs that were submitted, or of which something was delivered, around a failover."""
    times = Spans((began - _BEFORE_S, ended + _AFTER_S) for began, ended in failovers)
    if not failovers:
        return frozenset()
    submitted = ((n, at) for _, (n, _, at) in journal.read(folder, "submitted-*.jsonl"))
    delivered = ((n, at) for _, (n, _, at, _) in journal.read(folder, "delivered-*.jsonl"))
    return frozenset(n for n, at in chain(submitted, delivered) if times.within(at, at + 0.001))
