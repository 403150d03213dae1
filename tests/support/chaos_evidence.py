"""The evidence of a run of chaos in which nothing went wrong, and changes that break it."""

from collections.abc import Callable
from typing import Any

from rose.protocol import EntryKey, Partition
from tests.chaos.context import QUEUE
from tests.chaos.evidence import Evidence, RedisState, Take
from tests.chaos.job_record import Answer
from tests.chaos.managed_process import End, Life
from tests.chaos.plan import Kind, Plan
from tests.chaos.tenant_check import TenantJob

PLAN = Plan(seed=3, jobs=40)
PLAIN = next(n for n in range(40) if PLAN.job(n).kind is Kind.PLAIN)
POISON = next(n for n in range(40) if PLAN.job(n).kind is Kind.POISON)
CANCELLED = next(n for n in range(2000) if PLAN.job(n).kind is Kind.CANCEL_RUNNING)
DEADLINE = next(n for n in range(2000) if PLAN.job(n).kind is Kind.DEADLINE)
AMPLE = next(n for n in range(2000) if PLAN.job(n).kind is Kind.AMPLE)
HIGH = Partition(QUEUE).all_jobs[0]
GARBAGE = EntryKey("jobs:low", "7-0")
#: What a subscriber of `PLAIN` was given: tokens and text.
AS_LOGGED = ([5, 6, 7], "5 6 7 ")

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
        for n, (tenant, came, given, ended) in enumerate(jobs):
            run.redis.tenants[f"job-{n}"] = TenantJob(
                f"tenant-{tenant}", 0, came, given, ended, 100
            )

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
