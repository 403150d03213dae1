"""Jobs that are parked in their tenant's order: how they are handed out, and what ends them."""

from typing import Any

import pytest

from rose.errors import DeadlineExceeded
from rose.protocol import (
    GROUP,
    EntryKey,
    FailedEvent,
    FinishedEvent,
    JobEntry,
    JobSpec,
    Priority,
    calls,
    encode_job,
)
from rose.protocol.calls import NotTaken
from rose.protocol.tenants import TenantLimits
from rose_producer import Request, Tenants
from rose_producer.dead_letters import DeadLetters
from tests.support.bench import Bench, dead_letter
from tests.support.floor import Floor


def test_a_deadline_that_has_passed_costs_no_slot(bench: Bench, floor: Floor) -> None:
    # given
    late, job = *floor.submit("t", deadline_s=1000), *floor.submit("t")
    bench.redis.hset(bench.partition.state(late.id), "deadline_ms", 1)
    # when
    fetched = bench.fetch("w", 1)
    # then
    assert [entry.job_id for entry in fetched] == [job.id]
    with pytest.raises(DeadlineExceeded):
        late.result()


def test_a_parked_job_that_somebody_takes_away_costs_no_other_its_turn(
    bench: Bench, floor: Floor
) -> None:
    # given: more than are read together
    jobs = floor.submit("t", 20)
    taken_away = jobs.pop(2)
    entry = bench.redis.hget(bench.partition.state(taken_away.id), "entry")
    bench.redis.xdel(bench.partition.tenant_jobs, entry)
    # when
    fetched = bench.fetch("w", 30)
    # then
    assert [entry.job_id for entry in fetched] == [job.id for job in jobs]


def test_a_worker_owns_all_that_it_was_given_though_entries_beside_them_are_gone(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: two rows of entries, and between them one of a tenant that may run no more
    tenants.set("full", TenantLimits(max_running_jobs=1))
    floor.submit("full")
    assert floor.begin(1) == ["full"]
    whose = ["t"] * 6 + ["full"] + ["t"] * 5
    jobs = bench.client.submit_many([Request("x", tenant=name) for name in whose])
    # and somebody has deleted as many of the first row as let a read of it reach the second one
    (_, running), entries = floor.leases[0], bench.redis.xrange(bench.partition.tenant_jobs)
    waiting = [entry for entry, _ in entries if entry.decode() != running.entry.id]
    bench.redis.xdel(bench.partition.tenant_jobs, *waiting[1:3])
    # when
    fetched = bench.fetch("w", 20)
    # then
    own = [job.id for job, name in zip(jobs, whose, strict=True) if name == "t"]
    assert [entry.job_id for entry in fetched] == own[:1] + own[3:]
    pending = bench.redis.xpending_range(bench.partition.tenant_jobs, GROUP, "-", "+", 20, "w")
    held = {one["message_id"].decode() for one in pending}
    assert held == {running.entry.id} | {entry.entry.id for entry in fetched}


def test_jobs_of_several_streams_end_in_one_call(bench: Bench, floor: Floor) -> None:
    # given
    floor.submit("", 2, priority="high")
    floor.submit("", 2)
    floor.submit("t", 2)
    floor.begin(6)
    # when
    end = FinishedEvent(index=0, reason="eos", prompt_tokens=1)
    items = [calls.Append(lease, 0, end=end) for _, lease in floor.leases]
    assert bench.publish(items) == ["OK"] * 6
    # then
    for stream in bench.partition.all_streams:
        assert bench.redis.xlen(stream) == 0
        assert bench.redis.xpending(stream, GROUP)["pending"] == 0
    # and once more, as after a lost reply
    assert bench.publish(items) == ["DUP"] * 6


def test_a_dead_letter_is_retried_on_the_same_account(bench: Bench, floor: Floor) -> None:
    # given
    floor.submit("t", priority="low")
    floor.begin(1)
    _, lease = floor.leases.pop()
    ((_, fields),) = bench.redis.xrange(lease.entry.stream)
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    bench.call(dead_letter(bench, lease.entry, lease.job_id, failed, raw=fields[b"job"]))
    # when
    with DeadLetters(bench.client.settings) as letters:
        (letter,) = letters.list()
        retried = letters.retry(letter.handle)
    # then
    assert (letter.tenant, letter.level) == ("t", 3)
    assert bench.client.job(retried.new_id).status().tenant == "t"
    assert bench.client.queue_status().waiting == {"high": 0, "normal": 0, "low": 1}
    assert [job.job_id for job in bench.fetch("w")] == [retried.new_id]


def test_an_entry_with_the_id_of_a_parked_job_changes_nothing_of_that_job(bench: Bench) -> None:
    # given
    parked = bench.client.submit("mine", tenant="t", max_new_tokens=1)
    strange = encode_job(JobSpec(id=parked.id, prompt="somebody else's"))
    streams = (bench.partition.jobs(Priority.HIGH), bench.partition.jobs(Priority.LOW))
    added: list[Any] = [bench.redis.xadd(stream, {"job": strange}) for stream in streams]
    entries = [EntryKey(*entry) for entry in zip(streams, map(bytes.decode, added), strict=True)]
    bench.redis.xreadgroup(GROUP, "w", dict.fromkeys(streams, ">"))
    # when: it is taken; or cannot be read
    taken = bench.take("w", JobEntry(entries[0], parked.id))
    event = FailedEvent(index=0, code="malformed_job", message="no job")
    bench.call(dead_letter(bench, entries[1], parked.id, event))
    # then
    assert taken is NotTaken.NOTHING_TO_DO
    assert parked.status().status == "queued"
    # and the tenant's own job runs
    lease = bench.start("w")
    bench.finish(lease, 0)
    assert (lease.job_id, parked.status().status) == (parked.id, "finished")
    assert bench.lengths() == [0, 0, 0]


def test_a_job_that_somebody_has_taken_out_of_its_tenants_order_is_parked_anew(
    bench: Bench, floor: Floor
) -> None:
    # given: one job runs, two wait, and nobody knows of them
    floor.submit("t", 3)
    assert floor.begin(1) == ["t"]
    bench.redis.delete(bench.partition.parked("t"))
    assert floor.begin(2) == []
    # when
    swept = calls.swept(bench.partition, bench.call(calls.sweep(bench.partition, [], again_s=60)))
    # then: they are parked, not released, and the one that runs is left alone
    assert (swept.released, swept.lost) == (0, [])
    assert floor.begin(9) == ["t", "t"]


def test_jobs_whose_entries_somebody_has_deleted_end_once_a_worker_was_given_them(
    bench: Bench, floor: Floor
) -> None:
    # given
    jobs = floor.submit("t", 2)
    bench.redis.xtrim(bench.partition.tenant_jobs, maxlen=0)
    # when
    call = calls.fetch(bench.partition, "w", 9, ageing_ms=1000, take_id="take")
    assert bench.call(call)[0] == []
    swept = calls.swept(bench.partition, bench.call(calls.sweep(bench.partition, [], again_s=0)))
    # then: the sweep names them, so that its worker ends them
    assert {lease.job_id for lease in swept.lost} == {job.id for job in jobs}


def test_a_tenants_lone_job_is_taken_as_it_is_heard_of_and_others_are_left_to_a_fetch(
    bench: Bench, floor: Floor
) -> None:
    def take_last(job_id: str) -> list[Any]:
        ((entry, _),) = bench.redis.xrevrange(bench.partition.tenant_jobs, count=1)
        key = EntryKey(bench.partition.tenant_jobs, entry.decode())
        take = calls.Take(key, job_id, take_id="take")
        call = calls.take(bench.partition, [take], "w", ttl_s=60, mode="unread")
        replies.append(bench.call(call))
        return replies[-1]

    # given: a worker has fetched before, so that there is a group
    replies: list[list[Any]] = []
    floor.submit("t")
    assert floor.begin(1) == ["t"]
    # when
    lone = floor.submit("t")[0]
    others, _, _, outcome = take_last(lone.id)
    # then
    taken = calls.taken(outcome, "take")
    assert (others, isinstance(taken, calls.Taken), lone.status().status) == (0, True, "running")
    # and a repeat after a lost reply is granted the same
    assert calls.taken(take_last(lone.id)[3], "take") == taken
    # and where another tenant waits, it takes none
    floor.submit("other")
    late = floor.submit("t")[0]
    assert take_last(late.id) == [0]
    assert floor.begin(9) == ["other", "t"]
