"""Each invariant notices its violation, and is silent about a run in which nothing went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.answers import null_answer
from tests.chaos.check import Finding, Invariant, cause, check, moves
from tests.chaos.evidence import Answer, Drain, Evidence, RedisState, Take, Trouble
from tests.chaos.managed_process import End, Life
from tests.chaos.plan import RAW_BASE, Kind, Plan
from tests.chaos.raw import Garbage

PLAN = Plan(seed=3, jobs=40)
PLAIN = next(n for n in range(40) if PLAN.job(n).kind is Kind.PLAIN)
POISON = next(n for n in range(40) if PLAN.job(n).kind is Kind.POISON)
CANCELLED = next(n for n in range(2000) if PLAN.job(n).kind is Kind.CANCEL_RUNNING)
GARBAGE = Garbage("jobs:low", "7-0", "random bytes")


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
        {"id": "", "code": "malformed_message", "stream": GARBAGE.stream, "entry": GARBAGE.entry},
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
        lives=[life("worker-0.0", ended=12.0, end=End.KILLED), life("worker-1.0", end=End.DRAINED)],
        takes=[
            Take(10.0, ids[PLAIN], 0, "worker-0.0"),
            Take(14.0, ids[PLAIN], 1, "worker-1.0"),
        ],
        drains=[Drain("worker-1.0", 2.0, 0)],
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


def redelivered(run: Evidence) -> None:
    run.delivered[PLAIN].insert(1, tokens(0, 5))


def out_of_order(run: Evidence) -> None:
    first, second, end = run.delivered[PLAIN]
    run.delivered[PLAIN] = [second, first, end]


def token_lost(run: Evidence) -> None:
    del run.delivered[PLAIN][0]


def end_lost(run: Evidence) -> None:
    del run.delivered[PLAIN][-1]


def all_lost(run: Evidence) -> None:
    del run.delivered[PLAIN]


def stream_broke(run: Evidence) -> None:
    run.delivered[PLAIN][-1] = {"type": "error", "index": 3, "message": "the log has a hole"}


def other_token(run: Evidence) -> None:
    run.delivered[PLAIN][1] = tokens(1, 6, 99)


def other_text(run: Evidence) -> None:
    run.delivered[PLAIN][1] |= {"text": "6 7"}


def stopped_too_early(run: Evidence) -> None:
    run.delivered[PLAIN] = [tokens(0, 5), finished(1)]


def cancelled_with_a_seam(run: Evidence) -> None:
    run.delivered[CANCELLED][0] = tokens(0, 9)


def second_end(run: Evidence) -> None:
    run.delivered[PLAIN].append(finished(3))


def token_after_the_end(run: Evidence) -> None:
    run.delivered[PLAIN].append(tokens(3, 5))


def innocent_failed(run: Evidence) -> None:
    run.delivered[PLAIN][-1] = failed(3, "crash_loop")


def poison_finished(run: Evidence) -> None:
    run.delivered[POISON] = [finished(0)]


def submitted_as_two(run: Evidence) -> None:
    run.submitted.append((PLAIN, "another id"))


def entry_doubled(run: Evidence) -> None:
    run.redis.entries_added += 1


def log_has_more(run: Evidence) -> None:
    run.redis.logs[f"id-{PLAIN}"].append(("4-0", tokens(3, 5)))


def log_id_is_wrong(run: Evidence) -> None:
    log = run.redis.logs[f"id-{PLAIN}"]
    log[0] = ("0-1", log[0][1])


def worker_lived_on(run: Evidence) -> None:
    run.lives[0] = life("worker-0.0", end=End.OVER)


def letter_missing(run: Evidence) -> None:
    del run.redis.dead[1]


def poison_letter_missing(run: Evidence) -> None:
    del run.redis.dead[0]


def letter_twice(run: Evidence) -> None:
    run.redis.dead.append(run.redis.dead[1])


def innocent_letter(run: Evidence) -> None:
    run.redis.dead.append(run.redis.dead[0] | {"id": f"id-{PLAIN}", "entry": "8-0"})


def entry_left(run: Evidence) -> None:
    run.redis.streams["jobs:low"] = (1, 0)


def pending_left(run: Evidence) -> None:
    run.redis.streams["jobs:low"] = (0, 1)


def load_left(run: Evidence) -> None:
    run.redis.queued_tokens = -12


def slot_left(run: Evidence) -> None:
    run.gauges["worker-1"]["rose_batch_sequences"] = 1


def block_left(run: Evidence) -> None:
    run.gauges["worker-1"]["rose_kv_cache_usage_ratio"] = 0.01


def worker_silent(run: Evidence) -> None:
    run.gauges["worker-1"] = {}


def key_for_ever(run: Evidence) -> None:
    run.redis.immortal.append("rose:{chaos:0}:state:x")


def unknown_key(run: Evidence) -> None:
    run.redis.unknown.append("what is this")


def memory_grew(run: Evidence) -> None:
    run.redis.memory_after += 5_000_000


def drain_failed(run: Evidence) -> None:
    run.drains.append(Drain("worker-2.0", 1.0, 1))


def drain_late(run: Evidence) -> None:
    run.drains.append(Drain("worker-2.0", 5.5, 0))


def drain_never(run: Evidence) -> None:
    run.drains.append(Drain("worker-2.0", None, -9))


def process_ended(run: Evidence) -> None:
    run.lives.append(life("subscriber-0.0", end=End.ITSELF, exit_code=1))


VIOLATIONS: list[tuple[Callable[[Evidence], None], Invariant]] = [
    (token_lost, Invariant.LOST),
    (end_lost, Invariant.LOST),
    (all_lost, Invariant.LOST),
    (stream_broke, Invariant.LOST),
    (redelivered, Invariant.DOUBLED),
    (submitted_as_two, Invariant.DOUBLED),
    (entry_doubled, Invariant.DOUBLED),
    (out_of_order, Invariant.REORDERED),
    (other_token, Invariant.SEAMS),
    (other_text, Invariant.SEAMS),
    (stopped_too_early, Invariant.SEAMS),
    (cancelled_with_a_seam, Invariant.SEAMS),
    (second_end, Invariant.ENDS),
    (token_after_the_end, Invariant.ENDS),
    (innocent_failed, Invariant.OUTCOMES),
    (poison_finished, Invariant.OUTCOMES),
    (log_has_more, Invariant.LOG),
    (log_id_is_wrong, Invariant.LOG),
    (worker_lived_on, Invariant.MOVED),
    (letter_missing, Invariant.DEAD_LETTERS),
    (poison_letter_missing, Invariant.DEAD_LETTERS),
    (letter_twice, Invariant.DEAD_LETTERS),
    (innocent_letter, Invariant.DEAD_LETTERS),
    (entry_left, Invariant.EMPTY),
    (pending_left, Invariant.EMPTY),
    (load_left, Invariant.EMPTY),
    (slot_left, Invariant.SLOTS),
    (block_left, Invariant.SLOTS),
    (worker_silent, Invariant.SLOTS),
    (key_for_ever, Invariant.MEMORY),
    (unknown_key, Invariant.MEMORY),
    (memory_grew, Invariant.MEMORY),
    (drain_failed, Invariant.DRAINS),
    (drain_late, Invariant.DRAINS),
    (drain_never, Invariant.DRAINS),
    (process_ended, Invariant.PROCESSES),
]


def test_a_good_run_breaks_nothing() -> None:
    assert check(a_good_run()) == []


@pytest.mark.parametrize(
    ("violate", "invariant"), VIOLATIONS, ids=[violate.__name__ for violate, _ in VIOLATIONS]
)
def test_a_violation_is_noticed(violate: Callable[[Evidence], None], invariant: Invariant) -> None:
    # given
    run = a_good_run()
    # when
    violate(run)
    # then
    assert invariant in {finding.invariant for finding in check(run)}


def test_every_invariant_is_shown_to_notice_something() -> None:
    assert {invariant for _, invariant in VIOLATIONS} == set(Invariant)


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
    (move,) = moves(run)
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
    assert [finding.invariant for finding in check(run)] == [Invariant.OUTCOMES]


def test_a_finding_names_the_job() -> None:
    # given
    run = a_good_run()
    # when
    other_token(run)
    # then
    seams = [f for f in check(run) if f.invariant is Invariant.SEAMS]
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
