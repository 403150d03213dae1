"""Each invariant notices its violation, and is silent about a run in which nothing went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rose.protocol import EntryKey, Partition
from tests.chaos.answers import null_answer
from tests.chaos.check import cause, check
from tests.chaos.context import QUEUE
from tests.chaos.evidence import (
    Crowd,
    Evidence,
    Raised,
    RedisState,
    Stretch,
    Take,
    moves,
)
from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.job_record import Answer
from tests.chaos.managed_process import End, Life
from tests.chaos.plan import RAW_BASE, Kind, Plan
from tests.chaos.tenant_check import TenantJob
from tests.chaos.trouble import Trouble

PLAN = Plan(seed=3, jobs=40)
PLAIN = next(n for n in range(40) if PLAN.job(n).kind is Kind.PLAIN)
POISON = next(n for n in range(40) if PLAN.job(n).kind is Kind.POISON)
CANCELLED = next(n for n in range(2000) if PLAN.job(n).kind is Kind.CANCEL_RUNNING)
DEADLINE = next(n for n in range(2000) if PLAN.job(n).kind is Kind.DEADLINE)
AMPLE = next(n for n in range(2000) if PLAN.job(n).kind is Kind.AMPLE)
HIGH = Partition(QUEUE).all_jobs[0]
GARBAGE = EntryKey("jobs:low", "7-0")

Change = Callable[[Evidence], None]


def tokens(index: int, *ids: int) -> dict[str, Any]:
    text = "".join(f"{token} " for token in ids)
    return {"type": "tokens", "index": index, "token_ids": list(ids), "text": text}


def finished(index: int) -> dict[str, Any]:
    return {"type": "finished", "index": index, "reason": "length", "prompt_tokens": 1}


def failed(index: int, code: str) -> dict[str, Any]:
    return {"type": "failed", "index": index, "code": code, "message": "..."}


def logged(event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    cursor = event["index"] + len(event.get("token_ids", ()))
    return f"{cursor}-{int(event['type'] != 'tokens')}", event


def life(name: str, **fields: Any) -> Life:
    process, _, incarnation = name.partition(".")
    return Life(process, int(incarnation), 0.0, **fields)


def drained(name: str, seconds: float, exit_code: int, end: End = End.DRAINED) -> Life:
    return life(name, told_at=20.0, ended=20.0 + seconds, end=end, exit_code=exit_code)


def tenants_had(*jobs: tuple[int, int, int, int]) -> Change:
    """Of each: the number of its tenant, when it came, was given to a worker and ended, in ms."""

    def change(run: Evidence) -> None:
        run.plan = Plan(seed=3, jobs=40, tenants=4)
        for n, (tenant, *times) in enumerate(jobs):
            run.redis.tenants[f"job-{n}"] = TenantJob(f"tenant-{tenant}", 0, *times, tokens=100)

    return change


def a_good_run() -> Evidence:
    """A job that moved with its killed worker, a cancelled one, a poison, some garbage."""
    events = {
        PLAIN: [tokens(0, 5), tokens(1, 6, 7), finished(3)],
        CANCELLED: [tokens(0, 8), {"type": "cancelled", "index": 1}],
        POISON: [failed(0, "crash_loop")],
    }
    ids = {number: f"id-{number}" for number in events}
    poison_letter = {"id": ids[POISON], "code": "crash_loop", "stream": "jobs:high", "entry": "9-0"}
    letters = [
        poison_letter,
        {"id": "", "code": "malformed_message", "stream": GARBAGE.stream, "entry": GARBAGE.id},
    ]
    return Evidence(
        plan=PLAN,
        drain_limit_s=5.0,
        submitted=[*ids.items(), (PLAIN, ids[PLAIN])],
        raw_entries=1,
        delivered=events,
        answers={
            PLAIN: Answer((5, 6, 7), "5 6 7 "),
            CANCELLED: Answer((8, 9), "8 9 "),
            POISON: Answer((1, 2), "1 2 "),
        },
        garbage=[GARBAGE],
        lives=[life("worker-0.0", ended=12.0, end=End.KILLED), drained("worker-1.0", 2.0, 0)],
        takes=[
            Take(10.0, ids[PLAIN], 0, "worker-0.0"),
            Take(14.0, ids[PLAIN], 1, "worker-1.0"),
        ],
        serving={"worker-0.0": 1.0, "worker-1.0": 1.0},
        gauges={"worker-1": {"rose_batch_sequences": 0, "rose_kv_cache_usage_ratio": 0}},
        redis=RedisState(
            streams={"jobs:high": (0, 0), "jobs:low": (0, 0)},
            entries_added=4,
            logs={ids[number]: [logged(event) for event in events[number]] for number in events},
            dead=[letter | {"message": "..."} for letter in letters],
            memory_before=2_000_000,
            memory_after=2_000_100,
        ),
    )


def delivered(number: int, *events: dict[str, Any]) -> Change:
    """What the subscriber of job `number` was given instead."""
    return lambda run: run.delivered.update({number: list(events)})


def redis_has(**fields: Any) -> Change:
    return lambda run: vars(run.redis).update(fields)


def dead_letters(*changes: dict[str, str] | None) -> Change:
    """The letter of the poison and that of the garbage, changed; None: it is missing."""

    def change(run: Evidence) -> None:
        letters = [*run.redis.dead, *run.redis.dead]
        pairs = zip(letters, changes, strict=False)
        run.redis.dead = [letter | changed for letter, changed in pairs if changed is not None]

    return change


def gauges(**samples: float) -> Change:
    return lambda run: run.gauges.update({"worker-1": samples})


def lived(another: Life) -> Change:
    return lambda run: run.lives.append(another)


def worker_lived_on(run: Evidence) -> None:
    run.lives[0] = life("worker-0.0", end=End.OVER)


def taken_over_at(at: float) -> Change:
    def change(run: Evidence) -> None:
        run.takes[1] = Take(at, f"id-{PLAIN}", 1, "worker-1.0")
        run.lives[1] = life("worker-1.0")

    return change


def begun_before_it(seconds: float) -> Change:
    """A job of the same stream that came later, and began so much earlier."""

    def change(run: Evidence) -> None:
        run.lives = [life("worker-0.0"), life("worker-1.0")]
        run.takes = [
            Take(10.0, "later", 0, "worker-1.0"),
            Take(10.0 + seconds, f"id-{PLAIN}", 0, "worker-0.0"),
        ]
        run.redis.entries = {
            "later": EntryKey(HIGH, "9000-0"),
            f"id-{PLAIN}": EntryKey(HIGH, "5000-0"),
        }

    return change


def begun_at(at: float) -> Change:
    """A job with a deadline, which came at 3."""

    def change(run: Evidence) -> None:
        run.submitted.append((DEADLINE, "late"))
        run.redis.entries["late"] = EntryKey(HIGH, "3000-0")
        run.lives.append(life("worker-2.0"))
        run.takes.append(Take(at, "late", 0, "worker-2.0"))

    return change


def ample_missed_after(lasted_s: float) -> Change:
    """A job with a deadline of 60 s that failed for it."""

    def change(run: Evidence) -> None:
        end = failed(0, "deadline_exceeded")
        run.submitted.append((AMPLE, "ample"))
        run.delivered[AMPLE] = [end]
        run.redis.logs["ample"] = [logged(end)]
        run.redis.lasted["ample"] = lasted_s
        run.redis.entries_added += 1
        run.answers = {**run.answers, AMPLE: Answer((1,), "1 ")}

    return change


FIRST, SECOND, LAST = tokens(0, 5), tokens(1, 6, 7), finished(3)
BROKEN = {"type": "error", "index": 3, "message": "the log has a hole"}
AS_LOGGED = ([5, 6, 7], "5 6 7 ")
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
        lambda run: run.stretches.append(Stretch("memory limit", 10.0, 6.0, 3, 60)),
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


def test_a_good_run_breaks_nothing() -> None:
    assert check(a_good_run()) == []


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


@pytest.mark.parametrize(
    "befell",
    [
        {"ended": 12.0, "end": End.POISONED},
        {"told_at": 11.0},
        {"stopped": [(10.5, 13.5)]},
    ],
)
def test_a_move_has_a_cause(befell: dict[str, Any]) -> None:
    # given
    run = a_good_run()
    # when
    run.lives[0] = life("worker-0.0", **befell)
    # then
    assert check(run) == []


@pytest.mark.parametrize(
    ("trouble", "explains"),
    [
        (Trouble(11.0, 12.0, "cut", "worker-0"), True),
        (Trouble(11.0, 12.0, "cut", "worker-1"), False),  # of somebody else's
        (Trouble(11.0, 12.0, "Redis restarted"), True),
        (Trouble(2.0, 3.0, "Redis restarted"), False),  # long before
        (Trouble(13.0, 14.0, "stopped", "worker-1"), True),  # it took the job before that
    ],
)
def test_trouble_explains_a_move_of_whom_it_trouble_during(
    trouble: Trouble, explains: bool
) -> None:
    # given
    run = a_good_run()
    worker_lived_on(run)
    # when
    run.troubles = [trouble]
    # then
    (move,) = moves(run.takes)
    assert (cause(run, *move) is not None) is explains


def test_garbage_with_a_readable_id_must_fail_with_its_code() -> None:
    # given
    run = a_good_run()
    number = RAW_BASE + 1
    run.submitted.append((number, "bad"))
    run.failures[number] = "invalid_parameter"
    run.delivered[number] = [failed(0, "invalid_parameter")]
    run.redis.logs["bad"] = [logged(failed(0, "invalid_parameter"))]
    assert check(run) == []
    # when
    run.delivered[number] = [finished(0)]
    run.redis.logs["bad"] = [logged(finished(0))]
    # then
    assert [finding.rule for finding in check(run)] == [Invariant.OUTCOMES]


def test_a_finding_names_the_job() -> None:
    # given
    run = a_good_run()
    # when
    _, violate = VIOLATIONS["other token"]
    violate(run)
    # then
    seams = [f for f in check(run) if f.rule is Invariant.SEAMS]
    assert seams == [Finding(Invariant.SEAMS, "token 2 is 99, undisturbed 7", PLAIN)]


def test_the_undisturbed_answer_of_the_null_engine() -> None:
    # given
    jobs = [PLAN.job(n) for n in range(40)]
    job = next(job for job in jobs if isinstance(job.prompt, str))
    # when
    answer = null_answer(job)
    # then
    assert isinstance(job.prompt, str)
    said = job.prompt.encode()
    assert answer.tokens[: len(said)] == tuple(said)[: len(answer.tokens)]
    assert len(answer.tokens) == job.sampling["max_new_tokens"]
    assert answer.text.split() == [str(token) for token in answer.tokens]


@pytest.mark.parametrize(("at", "findings"), [(3.1, []), (7.0, [Invariant.DEADLINES])])
def test_a_deadline_counts_from_the_submit(at: float, findings: list[Invariant]) -> None:
    # given
    run = a_good_run()
    begun_at(at)(run)
    # then
    about_it = [f.rule for f in check(run) if f.rule is Invariant.DEADLINES]
    assert about_it == findings


def test_an_ample_deadline_that_has_passed_may_be_missed() -> None:
    # given
    run = a_good_run()
    # when: the machine took as long
    ample_missed_after(60.1)(run)
    # then
    assert check(run) == []


def test_what_expired_on_purpose_has_no_log_and_what_was_retried_no_dead_letter() -> None:
    # given
    run = a_good_run()
    run.redis.logs.pop(f"id-{PLAIN}")
    run.redis.dead = [letter for letter in run.redis.dead if letter["code"] != "crash_loop"]
    assert check(run) != []
    # when
    run.expired, run.retried = frozenset({PLAIN}), frozenset({POISON})
    # then
    assert check(run) == []


def test_a_crowd_that_saw_the_log_is_right() -> None:
    # given
    run = a_good_run()
    # when
    run.crowds = [Crowd(PLAIN, f"id-{PLAIN}", 22, [AS_LOGGED], [])]
    run.connections = {"crowd-0": 64}
    # then
    assert check(run) == []
