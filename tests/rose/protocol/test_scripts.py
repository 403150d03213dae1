"""Every transition, called as a worker and a producer would, on each broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rose.errors import PromptTooLong
from rose.protocol import (
    GROUP,
    EntryKey,
    JobEntry,
    JobSpec,
    Priority,
    calls,
    decode_event,
    decode_job,
    encode_job,
)
from rose.protocol.calls import Lease, NotTaken, Take, Taken
from rose.protocol.status import read_queue_status
from rose_producer import FailedEvent, FinishedEvent, Job
from tests.support.bench import Bench, dead_letter, to_append, token


def test_fetch_serves_the_most_urgent_and_never_more_than_asked(bench: Bench) -> None:
    # given
    low = [bench.client.submit("x", priority="low").id for _ in range(2)]
    normal = [bench.client.submit("x").id for _ in range(2)]
    high = [bench.client.submit("x", priority="high").id]
    # when
    first = [job.job_id for job in bench.fetch("w", 2)]
    rest = [job.job_id for job in bench.fetch("w", 10)]
    # then
    assert first == [*high, normal[0]]
    assert rest == [normal[1], *low]
    assert bench.fetch("w", 5) == []


def test_submit_is_idempotent_by_key_and_by_id(bench: Bench) -> None:
    # when
    first = bench.client.submit("x", idempotency_key="order 7")
    again = bench.client.submit("y", idempotency_key="order 7")
    same_id = bench.client.submit("z", job_id=first.id)
    # then
    assert first.id == again.id == same_id.id
    assert bench.lengths() == [0, 1, 0]


def test_submit_refuses_what_the_model_cannot_hold(bench: Bench) -> None:
    # given
    facts = {"name": "m", "context_tokens": 10, "max_bytes_per_token": 4}
    bench.redis.hset(bench.partition.model, mapping=facts)
    # then: exact for ids, a certain lower bound for text
    with pytest.raises(PromptTooLong, match="10"):
        bench.client.submit([1] * 10)
    with pytest.raises(PromptTooLong):
        bench.client.submit("x" * 37)
    bench.client.submit([1] * 9)
    bench.client.submit("x" * 36)
    # and where it is not certain, the worker decides
    bench.redis.hset(bench.partition.model, "max_bytes_per_token", "")
    bench.client.submit("x" * 400)


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
    assert calls.taken(first[3]) == Taken(1, 1, False, 0)
    assert second[1].decode() == entries[1]
    assert decode_job(second[2]).id == jobs[1].id
    assert calls.taken(second[3]) is NotTaken.NOTHING_TO_DO
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
    assert bench.take("w1", job, alone=False, take_id="a") == Taken(3, 1, False, 0)


def test_a_repeated_take_is_refused_once_another_worker_has_the_job(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    (job,) = bench.fetch("w1")
    first = bench.take("w1", job, take_id="a")
    assert isinstance(first, Taken)
    # when
    stolen = bench.steal(Lease(bench.partition, *job, first.epoch), "w2")
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
    assert [calls.taken(answer[3]) for answer in answers] == [Taken(1, 1, False, 0)] * 3
    assert [answer[:3] for answer in answers] == [answers[0][:3]] * 3
    assert bench.redis.xpending(stream, GROUP)["pending"] == 1


def test_the_log_grows_by_one_entry_per_event_and_a_retry_doubles_nothing(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    # when: the reply to the first call is lost, so the worker repeats it
    first = bench.append(lease, token(0), token(1))
    repeated = bench.append(lease, token(0), token(1), token(2))
    # then
    assert first == ["OK", "OK"]
    assert repeated == ["DUP", "DUP", "OK"]
    entries = bench.redis.xrange(bench.partition.tokens(job.id))
    assert [entry_id for entry_id, _ in entries] == [b"1-0", b"2-0", b"3-0"]
    assert [decode_event(f[b"event"]) for _, f in entries] == [token(0), token(1), token(2)]


def test_tokens_and_ends_that_leave_a_gap_are_refused(bench: Bench) -> None:
    _, lease = bench.begin()
    assert bench.append(lease, token(0), token(2)) == ["OK", "GAP"]
    assert bench.finish(lease, 2) == "GAP"
    assert bench.lengths() == [0, 1, 0]


def test_a_run_of_tokens_is_logged_as_far_as_it_is_new(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    channel = bench.redis.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(bench.partition.channel(job.id))
    channel.get_message(timeout=90)
    bench.append(lease, token(0), token(1))
    # when: a run that begins where an earlier call did, and ends with the job
    run = to_append(lease, *map(token, range(4)))
    run.end = FinishedEvent(index=4, reason="eos", prompt_tokens=1)
    outcomes = bench.publish([run]) + bench.publish([run])
    # then
    assert outcomes == ["OK", "DUP"]
    published = [channel.get_message(timeout=90) for _ in range(5)]
    assert [decode_event(m["data"]) for m in published if m] == [*map(token, range(4)), run.end]
    assert channel.get_message(timeout=0.05) is None
    assert job.result(1).token_ids == (100, 101, 102, 103)
    assert bench.lengths() == [0, 0, 0]
    channel.close()


def test_a_worker_that_lost_its_job_is_fenced(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    zombie = bench.start("w1")
    bench.append(zombie, token(0), token(1))
    # when
    taken = bench.steal(zombie, "w2")
    # then: the new owner gets a higher epoch, the old one gets nothing through
    assert taken.epoch == zombie.epoch + 1
    assert taken.logged == 2
    assert bench.append(zombie, token(2)) == ["FENCED"]
    assert bench.finish(zombie, 2) == "FENCED"
    owner = replace(zombie, epoch=taken.epoch)
    assert bench.append(owner, token(2)) == ["OK"]
    assert bench.finish(owner, 3) == "OK"
    assert job.result(1).token_ids == (100, 101, 102)


def test_finish_is_last_once_and_acknowledged_after_the_result_is_stored(bench: Bench) -> None:
    # given
    job = bench.client.submit([1, 2, 3], max_new_tokens=7)
    lease = bench.start("w")
    bench.append(lease, token(0))
    assert bench.client.queue_status().queued_tokens == 10
    # when
    outcomes = [bench.finish(lease, 1), bench.finish(lease, 1)]
    # then
    assert outcomes == ["OK", "DUP"]
    assert bench.client.queue_status().queued_tokens == 0
    assert bench.append(lease, token(1)) == ["GAP"]
    entries = bench.redis.xrange(bench.partition.tokens(job.id))
    assert [entry_id for entry_id, _ in entries] == [b"1-0", b"1-1"]
    assert bench.lengths() == [0, 0, 0]
    assert bench.redis.xpending(lease.entry.stream, GROUP)["pending"] == 0
    for key in (bench.partition.state(job.id), bench.partition.tokens(job.id)):
        assert 0 < bench.redis.ttl(key) <= 60


def test_attempts_count_takes_without_progress_only(bench: Bench) -> None:
    # given
    _, lease = bench.begin("w0")
    # when: two crash loops, then a take after which a token came
    attempts = []
    for n in range(1, 4):
        taken = bench.steal(lease, f"w{n}")
        attempts.append(taken.attempts)
        lease = replace(lease, epoch=taken.epoch)
    bench.append(lease, token(0))
    after = bench.steal(lease, "w9")
    # then
    assert attempts == [2, 3, 4]
    assert after.attempts == 1


def test_release_hands_back_at_once_and_charges_no_attempt(bench: Bench) -> None:
    # given
    job, lease = bench.begin("w1")
    bench.append(lease, token(0))
    # when
    stream = lease.entry.stream
    released = bench.call(
        calls.release(bench.partition, stream, "w1", [JobEntry(lease.entry, job.id)])
    )
    # then: fenced itself, and free for the next reclaim though the lease is long
    assert released == 1
    assert bench.append(lease, token(1)) == ["FENCED"]
    assert job.status().status == "queued"
    status = bench.client.queue_status()
    assert (status.waiting["normal"], status.running, status.workers) == (1, 0, {"w1": 0})
    _, claimed, *_ = bench.redis.xautoclaim(stream, GROUP, "w2", 60_000)
    assert [entry.decode() for entry, _ in claimed] == [lease.entry.id]
    taken = bench.take("w2", JobEntry(lease.entry, job.id), alone=False)
    assert isinstance(taken, Taken)
    assert taken.attempts == 1


def test_renew_keeps_what_is_ours_and_names_what_is_lost(bench: Bench) -> None:
    # given
    bench.client.submit_many(["a", "b"])
    mine, lost = bench.start("w1"), bench.start("w1")
    bench.steal(lost, "w2")
    # when
    reply = bench.call(calls.renew(mine.entry.stream, "w1", [mine.entry.id, lost.entry.id]))
    # then
    assert reply == [lost.entry.id.encode()]


def test_cancel_ends_a_waiting_job_and_leaves_its_entry_to_the_next_take(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    # when
    assert job.cancel() is True
    # then
    assert [event.type for event in job.stream()] == ["cancelled"]
    assert job.cancel() is False
    assert bench.lengths() == [0, 1, 0]
    (entry,) = bench.fetch("w")
    assert bench.take("w", entry) is NotTaken.NOTHING_TO_DO
    assert bench.lengths() == [0, 0, 0]


def test_cancel_of_a_running_job_is_a_flag_that_every_append_reads(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    # when
    job.cancel()
    # then
    assert bench.append(lease, token(0)) == ["CANCEL"]
    taken = bench.steal(lease, "w2")
    assert taken.cancel_requested


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


def test_a_dead_letter_keeps_the_bytes_and_tells_the_subscriber(bench: Bench) -> None:
    # given
    stream = bench.partition.jobs(Priority.HIGH)
    entry = bench.redis.xadd(stream, {"job": b"garbage"}).decode()
    bench.redis.xreadgroup(GROUP, "w", {stream: ">"})
    failed = FailedEvent(index=0, code="malformed_message", message="no")
    # when
    call = dead_letter(bench, EntryKey(stream, entry), "abc", failed)
    assert bench.call(call) == b"DEAD"
    assert bench.call(call) == b"NOT_OWNER"
    # then
    ((_, letter),) = bench.redis.xrange(bench.partition.dead)
    assert (letter[b"job"], letter[b"code"]) == (b"garbage", b"malformed_message")
    assert 0 < bench.redis.ttl(bench.partition.dead) <= 60
    assert list(bench.client.job("abc").stream()) == [failed]
    assert bench.lengths() == [0, 0, 0]


def test_dead_letters_take_no_more_than_so_many_bytes(bench: Bench) -> None:
    # given
    stream, dead = bench.partition.jobs(Priority.HIGH), bench.partition.dead
    failed = FailedEvent(index=0, code="malformed_message", message="no")

    def give_up(raw: bytes) -> list[bytes]:
        """The jobs that are kept then."""
        entry = bench.redis.xadd(stream, {"job": raw}).decode()
        bench.redis.xreadgroup(GROUP, "w", {stream: ">"})
        call = dead_letter(bench, EntryKey(stream, entry), "abc", failed, raw, keep_bytes=10_000)
        assert bench.call(call) == b"DEAD"
        return [letter[b"job"] for _, letter in bench.redis.xrange(dead)]

    small, large, huge = b"s" * 1000, b"l" * 6000, b"h" * 20_000
    # when / then: the oldest go, as many as need be
    for count in range(1, 5):
        assert give_up(small) == [small] * count
    assert give_up(large) == [small] * 2 + [large]
    # the last one is always there
    assert give_up(huge) == [huge]
    assert give_up(small) == [small]
    # who looks after them may begin anew
    bench.redis.delete(dead)
    assert give_up(large) == [large]


def test_an_entry_with_somebody_elses_id_does_not_end_their_job(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    # the same id in another stream, as can happen
    stream, entry = bench.partition.jobs(Priority.HIGH), lease.entry.id
    bench.redis.xadd(stream, {"job": b"garbage"}, id=entry)
    bench.redis.xreadgroup(GROUP, "w", {stream: ">"})
    failed = FailedEvent(index=0, code="x", message="m")
    # when
    bench.call(dead_letter(bench, EntryKey(stream, entry), job.id, failed))
    # then
    assert bench.append(lease, token(0)) == ["OK"]


def test_ageing_lets_no_job_be_overtaken_by_one_that_came_too_much_later(bench: Bench) -> None:
    # given: entry ids are enqueue times; a level of priority is worth ten seconds
    def add(priority: Priority, at_ms: int) -> None:
        raw = encode_job(JobSpec(id=f"{priority}-{at_ms}", prompt="x"))
        bench.redis.xadd(bench.partition.jobs(priority), {"job": raw}, id=f"{at_ms}-0")

    for at_ms in (1_000, 2_000):
        add(Priority.LOW, at_ms)
    add(Priority.NORMAL, 11_500)
    for at_ms in (20_500, 21_500, 22_500, 23_500):
        add(Priority.HIGH, at_ms)
    # when
    one_by_one = [bench.fetch("w", 1, ageing_s=10)[0].job_id for _ in range(3)]
    together = [job.job_id for job in bench.fetch("w", 10, ageing_s=10)]
    # then: low from 1,000 counts as of 21,000, normal from 11,500 as of 21,500
    assert one_by_one == ["high-20500", "low-1000", "high-21500"]
    assert together == ["normal-11500", "low-2000", "high-22500", "high-23500"]


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


def test_handing_back_what_was_not_begun_on_keeps_the_attempt_of_another(bench: Bench) -> None:
    # given: w1 died on it; w2 reclaimed it and drains before it takes it
    job, lease = bench.begin("w1")
    bench.redis.xclaim(lease.entry.stream, GROUP, "w2", 0, [lease.entry.id])
    # when
    released = [JobEntry(lease.entry, job.id)]
    call = calls.release(bench.partition, lease.entry.stream, "w2", released)
    assert bench.call(call) == 1
    # then
    assert job.status().attempts == 1


def test_consumers_that_left_without_a_word_are_forgotten_once_they_hold_nothing(
    bench: Bench,
) -> None:
    # given
    bench.client.submit("x")
    bench.start("holder")
    for stream in bench.partition.all_jobs:
        bench.redis.xgroup_createconsumer(stream, GROUP, "killed")
    # when
    forgotten = bench.call(calls.forget(bench.partition, idle_ms=0))
    # then
    left = {
        info["name"]
        for stream in bench.partition.all_jobs
        for info in bench.redis.xinfo_consumers(stream, GROUP)
    }
    assert forgotten == 3
    assert left == {b"holder"}


def test_the_status_names_workers_that_live_and_those_that_hold_jobs(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    bench.start("holder")
    bench.redis.xgroup_createconsumer(bench.partition.jobs(Priority.LOW), GROUP, "idle")
    # when: by the second call nobody has been heard of lately
    status = bench.client.queue_status()
    call = calls.queue_status(bench.partition)
    later = replace(call, args=[GROUP, 0, *call.args[2:]])
    # then
    assert status.workers == {"holder": 1, "idle": 0}
    assert read_queue_status("q", [bench.call(later)]).workers == {"holder": 1}
