"""The check is silent about a run in which nothing went wrong, or nothing that may not."""

from dataclasses import replace
from typing import Any

import pytest

from rose.protocol import FinishedEvent, JobSpec
from rose_worker.settings import WorkerSettings
from tests.chaos.answers import null_answer
from tests.chaos.any_task import AnyTask
from tests.chaos.check import cause, check
from tests.chaos.context import HAND_BACKS
from tests.chaos.evidence import Crowd, moves
from tests.chaos.invariants import Invariant
from tests.chaos.job_record import Answer
from tests.chaos.managed_process import End
from tests.chaos.plan import RAW_BASE
from tests.chaos.trouble import Trouble
from tests.support.chaos_evidence import (
    AS_LOGGED,
    PLAIN,
    PLAN,
    POISON,
    a_good_run,
    ample_missed_after,
    begun_at,
    failed,
    finished,
    life,
    logged,
    worker_lived_on,
)


def test_a_good_run_breaks_nothing() -> None:
    assert check(a_good_run()) == []


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


def test_a_job_that_made_room_has_moved_for_that() -> None:
    # given
    run = a_good_run()
    worker_lived_on(run)
    back = replace(run.takes[0], at=11.0, done=1)
    # when
    run.handed_back = [back]
    # then
    assert check(run) == []
    # and not too often
    run.handed_back = [back] * (HAND_BACKS + 1)
    assert [finding.rule for finding in check(run)] == [Invariant.MOVED]


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


def test_the_undisturbed_numbers_of_the_null_engine() -> None:
    # given
    settings = WorkerSettings()
    plan = replace(PLAN, numbers=True)
    jobs = [job for n in range(60) if (job := plan.job(n)).encode is not None]
    # when
    engine = AnyTask(settings)
    for job in jobs:
        spec = JobSpec(id=f"job-{job.number}", prompt=tuple(job.prompt), encode=job.encode)
        engine.add(engine.prepare(spec, ()))
    outputs = {one.request_id: one.numbers for _ in range(4) for one in engine.step()}
    # then
    assert {job.encode.get("task") for job in jobs if job.encode} == {None, "score"}
    for job in jobs:
        numbers = outputs[f"job-{job.number}"]
        assert numbers is not None
        event = FinishedEvent(index=0, reason="stop", prompt_tokens=1, numbers=numbers)
        assert null_answer(job) == Answer((), "", event.as_json()["numbers"])


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
