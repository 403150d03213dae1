"""A take: who gets a job, what a repeat is granted, and what counts as an attempt."""

from dataclasses import replace
from typing import Any

import pytest

from rose.protocol import GROUP, EntryKey, JobEntry, Priority, calls, decode_job
from rose.protocol.calls import Lease, NotTaken, Take, Taken
from rose_producer import Job
from tests.support.bench import Bench, token


def test_only_the_owner_of_an_entry_can_take_it(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    (job,) = bench.fetch("w1")
    # then
    assert bench.take("w2", job) is NotTaken.NOTHING_TO_DO
    assert isinstance(bench.take("w1", job), Taken)


def test_a_job_that_was_heard_of_is_read_and_taken_at_once(bench: Bench) -> None:
    # given
    jobs = bench.client.submit_many(["x", "y"])
    stream = bench.partition.jobs(Priority.NORMAL)
    entries = [entry.decode() for entry, _ in bench.redis.xrange(stream)]

    def take_unread(worker: str) -> Any:
        take = Take(EntryKey(stream, entries[0]), jobs[0].id)
        return bench.call(calls.take(bench.partition, [take], worker, ttl_s=60, mode="unread"))

    # when: three workers have heard of the first one
    first, second, third = (take_unread(worker) for worker in ("w1", "w2", "w3"))
    # then: the second reads the next one, whose id it cannot know yet, and nothing is left
    assert first[1].decode() == entries[0]
    assert decode_job(first[2]).id == jobs[0].id
    assert calls.taken(first[3], "") == Taken(1, 1, False, 0)
    assert second[1].decode() == entries[1]
    assert decode_job(second[2]).id == jobs[1].id
    assert calls.taken(second[3], "") is NotTaken.NOTHING_TO_DO
    assert third == [0]
    assert isinstance(bench.take("w2", JobEntry(EntryKey(stream, entries[1]), jobs[1].id)), Taken)


def test_a_repeated_take_answers_what_the_first_did_and_charges_nothing(bench: Bench) -> None:
    # given: three lost replies
    bench.client.submit("x")
    (job,) = bench.fetch("w1")
    # when
    first, *repeats = (bench.take("w1", job, alone=False, take_id="a") for _ in range(4))
    # then
    assert first == Taken(1, 1, False, 0)
    assert repeats == [first] * 3
    # and another take of the same worker is no repeat, nor is one after a hand-back
    assert bench.take("w1", job, alone=False, take_id="b") is NotTaken.SUSPECT
    release = calls.release(bench.partition, job.entry.stream, "w1", [job])
    assert bench.call(release) == 1
    bench.redis.xclaim(job.entry.stream, GROUP, "w1", 0, [job.entry.id])
    assert bench.take("w1", job, alone=False, take_id="a") == Taken(2, 1, False, 0)


def test_a_repeated_take_is_refused_once_another_worker_has_the_job(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    (job,) = bench.fetch("w1")
    first = bench.take("w1", job, take_id="a")
    assert isinstance(first, Taken)
    # when
    stolen = bench.steal(Lease(bench.partition, *job, "a"), "w2")
    # then
    assert bench.take("w1", job, take_id="a") is NotTaken.NOTHING_TO_DO
    assert stolen.epoch == 2
    # and not even a take id that w2 gives again makes it w1's
    bench.redis.xclaim(job.entry.stream, GROUP, "w1", 0, [job.entry.id])
    assert bench.take("w1", job, alone=False, take_id="a") is NotTaken.SUSPECT


def test_a_repeated_reading_take_reads_no_second_entry(bench: Bench) -> None:
    # given
    first, _ = bench.client.submit_many(["x", "y"])
    stream = bench.partition.jobs(Priority.NORMAL)
    ((entry, _),) = bench.redis.xrange(stream, count=1)
    take = Take(EntryKey(stream, entry.decode()), first.id)
    call = calls.take(bench.partition, [take], "w", ttl_s=60, mode="unread")
    # when
    answers = [bench.call(call) for _ in range(3)]
    # then
    assert answers[0][1] == entry
    assert decode_job(answers[0][2]).id == first.id
    assert [calls.taken(answer[3], "") for answer in answers] == [Taken(1, 1, False, 0)] * 3
    assert [answer[:3] for answer in answers] == [answers[0][:3]] * 3
    assert bench.redis.xpending(stream, GROUP)["pending"] == 1


def test_attempts_count_takes_without_progress_only(bench: Bench) -> None:
    # given
    _, lease = bench.begin("w0")
    # when: two crash loops, then a take after which a token came
    attempts = []
    for n in range(1, 4):
        taken = bench.steal(lease, f"w{n}")
        attempts.append(taken.attempts)
        lease = replace(lease, take_id=taken.take_id)
    bench.append(lease, token(0))
    after = bench.steal(lease, "w9")
    # then
    assert attempts == [2, 3, 4]
    assert after.attempts == 1


@pytest.mark.parametrize("priority", Priority)
def test_a_job_enqueued_twice_by_hand_runs_once(bench: Bench, priority: Priority) -> None:
    # given: a plain XADD whose reply was lost, and that was repeated
    stream = bench.partition.jobs(Priority.NORMAL)
    job: Job = bench.client.submit("x")
    ((entry, fields),) = bench.redis.xrange(stream)
    (first,) = bench.fetch("w", 1)
    assert isinstance(bench.take("w", first), Taken)
    again = bench.partition.jobs(priority)
    bench.redis.xadd(again, fields, id=entry if again != stream else "*")
    # when
    (second,) = bench.fetch("w", 1)
    # then
    assert second == JobEntry(EntryKey(again, second.entry.id), job.id)
    assert bench.take("w", second) is NotTaken.NOTHING_TO_DO
    assert bench.lengths() == [0, 1, 0]
    assert job.status().epoch == 1


def test_a_suspect_is_taken_only_alone_and_not_charged_before(bench: Bench) -> None:
    # given: its first worker died without a token
    _, lease = bench.begin("w1")
    bench.redis.xclaim(lease.entry.stream, GROUP, "w2", 0, [lease.entry.id])
    # when
    entry = JobEntry(lease.entry, lease.job_id)
    refused = [bench.take("w2", entry, alone=False) for _ in range(2)]
    taken = bench.take("w2", entry, alone=True)
    # then
    assert refused == [NotTaken.SUSPECT] * 2
    assert isinstance(taken, Taken)
    assert taken.attempts == 2


def test_a_job_whose_state_was_deleted_after_its_first_token(bench: Bench) -> None:
    # given
    job, lease = bench.begin("w1")
    assert bench.append(lease, token(0)) == ["OK"]
    # when
    bench.redis.delete(bench.partition.state(job.id))
    # then
    assert bench.take("w1", JobEntry(lease.entry, job.id)) is NotTaken.STATE_GONE
