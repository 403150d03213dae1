"""Each invariant notices its violation."""

import pytest

from tests.chaos.check import check
from tests.chaos.evidence import Crowd, Raised, Stretch
from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.managed_process import End
from tests.support.chaos_evidence import (
    AS_LOGGED,
    CANCELLED,
    PLAIN,
    POISON,
    Change,
    a_good_run,
    ample_missed_after,
    begun_at,
    begun_before_it,
    dead_letters,
    delivered,
    drained,
    failed,
    finished,
    gauges,
    life,
    lived,
    redis_has,
    taken_over_at,
    tenants_had,
    tokens,
    worker_lived_on,
)

FIRST, SECOND, LAST = tokens(0, 5), tokens(1, 6, 7), finished(3)
BROKEN = {"type": "error", "index": 3, "message": "the log has a hole"}
INNOCENT = {"id": f"id-{PLAIN}", "entry": "8-0"}
RESTING = {"rose_batch_sequences": 0, "rose_kv_cache_usage_ratio": 0}
VIOLATIONS: dict[str, tuple[Invariant, Change]] = {
    "token lost": (Invariant.LOST, delivered(PLAIN, SECOND, LAST)),
    "end lost": (Invariant.LOST, delivered(PLAIN, FIRST, SECOND)),
    "all lost": (Invariant.LOST, delivered(PLAIN)),
    "stream broke": (Invariant.LOST, delivered(PLAIN, FIRST, SECOND, BROKEN)),
    "redelivered": (Invariant.DOUBLED, delivered(PLAIN, FIRST, FIRST, SECOND, LAST)),
    "submitted as two": (Invariant.DOUBLED, lambda run: run.submitted.append((PLAIN, "another"))),
    "entry doubled": (Invariant.DOUBLED, redis_has(entries_added=5)),
    "out of order": (Invariant.REORDERED, delivered(PLAIN, SECOND, FIRST, LAST)),
    "other token": (Invariant.SEAMS, delivered(PLAIN, FIRST, tokens(1, 6, 99), LAST)),
    "other text": (Invariant.SEAMS, delivered(PLAIN, FIRST, SECOND | {"text": "6 7"}, LAST)),
    "numbers": (Invariant.SEAMS, delivered(PLAIN, FIRST, SECOND, LAST | {"numbers": [1, "AA"]})),
    "stopped too early": (Invariant.SEAMS, delivered(PLAIN, FIRST, finished(1))),
    "cancelled with a seam": (
        Invariant.SEAMS,
        delivered(CANCELLED, tokens(0, 9), {"type": "cancelled", "index": 1}),
    ),
    "stream raised": (
        Invariant.RAISED,
        lambda run: run.raised.append(Raised(PLAIN, 11.0, "BrokerUnavailable()")),
    ),
    "second end": (Invariant.ENDS, delivered(PLAIN, FIRST, SECOND, LAST, LAST)),
    "token after the end": (Invariant.ENDS, delivered(PLAIN, FIRST, SECOND, LAST, tokens(3, 5))),
    "innocent failed": (
        Invariant.OUTCOMES,
        delivered(PLAIN, FIRST, SECOND, failed(3, "crash_loop")),
    ),
    "ample deadline missed at once": (Invariant.OUTCOMES, ample_missed_after(2.0)),
    "poison finished": (Invariant.OUTCOMES, delivered(POISON, finished(0))),
    "log has more": (
        Invariant.LOG,
        lambda run: run.redis.logs[f"id-{PLAIN}"].append(("4-0", tokens(3, 5))),
    ),
    "log id is wrong": (
        Invariant.LOG,
        lambda run: run.redis.logs[f"id-{PLAIN}"].__setitem__(0, ("0-1", FIRST)),
    ),
    "worker lived on": (Invariant.MOVED, worker_lived_on),
    "taken over late": (Invariant.TAKEOVER, taken_over_at(40.0)),
    "begun after its deadline": (Invariant.DEADLINES, begun_at(7.0)),
    "dead handle": (
        Invariant.EXPIRY,
        lambda run: run.surprises.append("the key of id-1 has outlived it"),
    ),
    "crowd disagrees": (
        Invariant.CROWD,
        lambda run: run.crowds.append(Crowd(PLAIN, f"id-{PLAIN}", 9, [AS_LOGGED, ([5], "5 ")], [])),
    ),
    "crowd raised": (
        Invariant.CROWD,
        lambda run: run.crowds.append(Crowd(PLAIN, f"id-{PLAIN}", 9, [AS_LOGGED], ["JobNotFound"])),
    ),
    "crowd never ended": (
        Invariant.CROWD,
        lambda run: setattr(run, "unfinished_crowds", 1),
    ),
    "too many connections": (
        Invariant.CROWD,
        lambda run: setattr(run, "connections", {"crowd-0": 802}),
    ),
    "stands still": (
        Invariant.GOES_ON,
        lambda run: run.stretches.append(Stretch("memory limit", 10.0, 6.0, 3, 20.0)),
    ),
    "behind": (Invariant.ORDER, begun_before_it(30.0)),
    "over a cap": (Invariant.CAPS, tenants_had(*[(1, 0, 10, 500)] * 5)),
    "starved": (
        Invariant.SHARES,
        tenants_had(*((3, 0, 10 * n, 10 * n + 9) for n in range(400)), (0, 0, 4000, 4009)),
    ),
    "letter missing": (Invariant.DEAD_LETTERS, dead_letters({})),
    "poison letter missing": (Invariant.DEAD_LETTERS, dead_letters(None, {})),
    "letter twice": (Invariant.DEAD_LETTERS, dead_letters({}, {}, None, {})),
    "innocent letter": (Invariant.DEAD_LETTERS, dead_letters({}, {}, INNOCENT)),
    "entry left": (Invariant.EMPTY, redis_has(streams={"jobs:low": (1, 0)})),
    "pending left": (Invariant.EMPTY, redis_has(streams={"jobs:low": (0, 1)})),
    "load left": (Invariant.EMPTY, redis_has(queued_tokens=-12)),
    "slot left": (Invariant.SLOTS, gauges(**RESTING | {"rose_batch_sequences": 1})),
    "block left": (Invariant.SLOTS, gauges(**RESTING | {"rose_kv_cache_usage_ratio": 0.01})),
    "worker silent": (Invariant.SLOTS, gauges()),
    "key for ever": (Invariant.MEMORY, redis_has(immortal=["rose:{chaos:0}:state:x"])),
    "unknown key": (Invariant.MEMORY, redis_has(unknown=["what is this"])),
    "memory grew": (Invariant.MEMORY, redis_has(memory_after=7_000_100)),
    "drain failed": (Invariant.DRAINS, lived(drained("worker-2.0", 1.0, 1))),
    "drain late": (Invariant.DRAINS, lived(drained("worker-2.0", 5.5, 0))),
    "drain never": (Invariant.DRAINS, lived(drained("worker-2.0", 10.0, -9, End.ITSELF))),
    "process ended": (
        Invariant.PROCESSES,
        lived(life("subscriber-0.0", end=End.ITSELF, exit_code=1)),
    ),
}


@pytest.mark.parametrize(("invariant", "violate"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_is_noticed(invariant: Invariant, violate: Change) -> None:
    # given
    run = a_good_run()
    # when
    violate(run)
    # then
    assert invariant in {finding.rule for finding in check(run)}


def test_every_invariant_is_shown_to_notice_something() -> None:
    assert {invariant for invariant, _ in VIOLATIONS.values()} == set(Invariant)


def test_a_finding_names_the_job() -> None:
    # given
    run = a_good_run()
    # when
    _, violate = VIOLATIONS["other token"]
    violate(run)
    # then
    seams = [f for f in check(run) if f.rule is Invariant.SEAMS]
    assert seams == [Finding(Invariant.SEAMS, "token 2 is 99, undisturbed 7", PLAIN)]
