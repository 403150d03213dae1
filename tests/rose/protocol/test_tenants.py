"""Tenants: whose job is next, what each may have, and what becomes of jobs that are parked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rose.errors import DeadlineExceeded, InvalidParameter, JobCancelled, TenantLimited
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
from rose.protocol.calls import Lease, NotTaken
from rose.protocol.tenants import TenantLimits
from rose_producer import Request, Tenants
from rose_producer.dead_letters import DeadLetters
from tests.support.bench import Bench, dead_letter, wait_until
from tests.support.floor import Floor


def left_behind(bench: Bench) -> list[str]:
    """What the queue still holds on account of tenants, but for what it remembers of each."""
    keys = [key.decode().partition("}:")[2] for key in bench.redis.scan_iter("*")]
    kept = [f"shares:{name}" for name in ("clock", "worker", "tenants", "jobs")]
    return [key for key in keys if key.startswith("shares:") and key not in kept]


def wait_a_millisecond(bench: Bench) -> None:
    """Of Redis: what comes in the same one is in no order."""
    before = bench.redis.time()
    wait_until(lambda: bench.redis.time() > (before[0], before[1] + 1000))


def own_queue(bench: Bench, names: list[str]) -> list[str]:
    return [name for name in names if f"{{{bench.partition.queue}:0}}" in name]


def test_who_comes_after_a_flood_is_next(bench: Bench, floor: Floor) -> None:
    # given: a flood of one tenant fills the slots
    floor.submit("flood", 40)
    assert floor.begin(4) == ["flood"] * 4
    # when
    floor.submit("guest")
    # then: in the first slot that is free
    floor.end_first()
    assert floor.begin(1) == ["guest"]
    # and a job without a tenant, too
    floor.submit("")
    floor.end_first()
    assert floor.begin(1) == [""]


def test_slots_are_shared_by_weight_and_tokens(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: twice the weight, and three times as long answers
    tenants.set("heavy", TenantLimits(weight=2))
    answers = {"heavy": 300, "light": 100}
    for tenant in answers:
        floor.submit(tenant, 120)
    floor.begin(6)
    tokens: Counter[str] = Counter()
    # when
    for _ in range(110):
        tenant = floor.leases[0][0]
        floor.end_first(answers[tenant])
        tokens[tenant] += answers[tenant] + 1  # and that of the prompt
        floor.begin(1)
    # then: to within the jobs that run, with their prompts and what is charged in advance
    assert abs(tokens["heavy"] / 2 - tokens["light"]) <= 6 * (300 + 1 + 128)
    # and not by jobs: twice as many of three times as long answers
    assert tokens["heavy"] < 4 * tokens["light"]


def test_idling_saves_nothing_up(floor: Floor) -> None:
    # given: one works for long while the other idles
    floor.submit("busy", 80)
    floor.begin(2)
    for _ in range(30):
        floor.end_first()
        floor.begin(1)
    # when
    floor.submit("late", 40)
    begun: Counter[str] = Counter()
    for _ in range(10):
        floor.end_first()
        begun.update(floor.begin(1))
    # then
    assert 4 <= begun["late"] <= 6


def test_no_more_run_than_a_tenant_may_and_others_have_the_slots(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set("small", TenantLimits(max_running_jobs=2))
    floor.submit("small", 5)
    floor.submit("large", 5)
    # when / then
    assert floor.begin(10) == ["large"] * 5 + ["small"] * 2
    assert floor.begin(10) == []
    assert tenants.show("small").limited
    # and when one of them ends, the bell rings for the next
    bell = bench.redis.xrevrange(bench.partition.bell)
    while floor.end_first() != "small":
        pass
    assert bench.redis.xrevrange(bench.partition.bell) != bell
    assert floor.begin(10) == ["small"]
    # and a new limit holds at once
    tenants.set("small", TenantLimits(max_running_jobs=4))
    assert floor.begin(10) == ["small"] * 2


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (TenantLimits(max_queued_jobs=2), "max_queued_jobs"),
        (TenantLimits(max_queued_bytes=2500), "max_queued_bytes"),
        (TenantLimits(max_queued_tokens=30), "max_queued_tokens"),
        (TenantLimits(requests_per_minute=2), "requests_per_minute"),
        (TenantLimits(tokens_per_minute=30), "tokens_per_minute"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tenant_is_refused_what_it_may_not_have_and_nobody_else_is(
    floor: Floor, tenants: Tenants, limits: TenantLimits, limit: str
) -> None:
    # given: 11 tokens each
    tenants.set("t", limits)
    floor.submit("t", 2, max_new_tokens=10)
    # when
    with pytest.raises(TenantLimited) as refused:
        # A minute's limit refills: on a slow machine one more may fit in between.
        floor.submit("t", 50, max_new_tokens=10)
    # then
    error = refused.value
    assert (error.code, error.tenant, error.limit) == ("tenant_limited", "t", limit)
    assert error.maximum == getattr(limits, limit)
    assert 0 < error.retry_after_s <= 60
    floor.submit("other", 3)
    floor.submit("", 3)


def test_what_has_ended_counts_no_more(bench: Bench, floor: Floor, tenants: Tenants) -> None:
    # given: as many as it may have, of which one ends in each way
    tenants.set("t", TenantLimits(max_queued_jobs=5))
    _, _, cancelled, late, deleted = (
        *floor.submit("t", 3),
        *floor.submit("t", deadline_s=1000),
        *floor.submit("t"),
    )
    with pytest.raises(TenantLimited):
        floor.submit("t")
    # when
    assert floor.begin(2) == ["t", "t"]
    floor.end_first(2)
    bench.call(fail(bench, floor.leases.pop()[1]))
    assert cancelled.cancel()
    assert deleted.delete()
    bench.redis.zadd(bench.partition.tenant_deadlines, {late.id: 1})
    bench.call(calls.sweep(bench.partition, [], again_s=60))
    # then: at once, without a slot
    with pytest.raises(JobCancelled):
        cancelled.result()
    with pytest.raises(DeadlineExceeded):
        late.result()
    status = tenants.show("t")
    assert (status.waiting, status.running) == (0, 0)
    assert (status.queued_tokens, status.queued_bytes) == (0, 0)
    assert own_queue(bench, left_behind(bench)) == []
    load = bench.redis.hgetall(bench.partition.load)
    assert (load[b"tokens"], load[b"bytes"], load[b"parked_normal"]) == (b"0", b"0", b"0")
    assert floor.begin(5) == []
    floor.submit("t", 5)


def fail(bench: Bench, lease: Lease) -> calls.Call:
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    return calls.dead_letter(
        *(bench.partition, lease.entry, "w"),
        raw=b"garbage",
        job_id=lease.job_id,
        event=failed,
        keep=10,
        keep_bytes=2**20,
        keep_s=60,
        ttl_s=60,
    )


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


def test_priorities_act_within_a_tenant_and_age(bench: Bench) -> None:
    # given: those of others do not count
    bench.redis.hset(bench.partition.model, mapping={"name": "m", "ageing_ms": 60_000})
    submit = bench.client.submit
    low, high = (submit("x", tenant="t", priority=one).id for one in ("low", "high"))
    normal = submit("x", tenant="t").id
    # when / then
    assert [job.job_id for _ in range(3) for job in bench.fetch("w", 1)] == [high, normal, low]
    # and without time to age, the first is the first
    bench.redis.hset(bench.partition.model, "ageing_ms", 0)
    first, second = (submit("x", tenant="t", priority=one).id for one in ("low", "high"))
    assert [job.job_id for _ in range(2) for job in bench.fetch("w", 1)] == [first, second]


def test_a_class_that_passes_goes_before_all_tenants_shares_in_the_order_of_coming(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: a tenant that has used much, one that has used nothing, and jobs of nobody
    tenants.set_passing({Priority.HIGH})
    submit = bench.client.submit
    floor.submit("busy")
    floor.begin(1)
    floor.end_first(500)
    waiting = submit("x", tenant="busy").id
    guest, nobodys = submit("x", tenant="guest").id, submit("x").id
    # when
    urgent = []
    for one in ("busy", "", "guest", "busy"):
        wait_a_millisecond(bench)
        urgent.append(submit("x", tenant=one, priority="high").id)
    # then
    assert [[job.job_id for job in bench.fetch("w")] for _ in urgent] == [[job] for job in urgent]
    assert {job.job_id for job in bench.fetch("w", 9)} == {waiting, guest, nobodys}
    # and nothing passes once it may not
    tenants.set_passing(())
    normal, high = (submit("x", tenant="guest", priority=one).id for one in ("normal", "high"))
    assert [job.job_id for job in bench.fetch("w", 9)] == [high, normal]


def test_a_class_passes_among_jobs_without_a_tenant_also_where_no_tenant_may_run_more(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: a tenant that has as many jobs running as it may, and one that waits
    tenants.set_passing({Priority.LOW})
    tenants.set("full", TenantLimits(max_running_jobs=1))
    floor.submit("full", 2)
    assert floor.begin(1) == ["full"]
    normal, low = (bench.client.submit("x", priority=one).id for one in ("normal", "low"))
    # when / then
    assert [job.job_id for _ in range(2) for job in bench.fetch("w", 1)] == [low, normal]


def test_what_passes_is_charged_and_held_to_the_limits(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set_passing({Priority.HIGH})
    tenants.set("rude", TenantLimits(max_running_jobs=2))
    floor.submit("rude", 3, priority="high")
    floor.submit("rude")
    floor.submit("meek", 6)
    # when / then: no more than it may
    assert floor.begin(3) == ["meek", "rude", "rude"]
    assert tenants.show("rude").limited
    # and once more
    while floor.end_first(400) != "rude":
        pass
    assert floor.begin(1) == ["rude"]
    # and what has passed counts: the others are served until they have used as much
    while floor.leases:
        floor.end_first(400)
    assert floor.begin(2) == ["meek", "meek"]


def test_a_passing_class_hides_nobody_who_waits_longer(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: a tenant's job has waited for long, and one passes it
    tenants.set_passing({Priority.HIGH})
    (old,) = floor.submit("t")
    bench.redis.hset(bench.partition.state(old.id), "enqueued_ms", 5)
    floor.submit("t", priority="high")
    # then
    assert tenants.show("t").oldest_waiting_ms == 5
    assert bench.call(calls.oldest_waiting(bench.partition))[-1] == b"5-0"


def test_what_passes_does_so_also_once_its_tenant_has_another_name(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given
    tenants.set_passing({Priority.LOW})
    floor.submit("guest")
    urgent = bench.client.submit("x", tenant="old", priority="low").id
    # when
    tenants.rename("old", "new")
    # then
    assert tenants.passing() == (Priority.LOW,)
    assert tenants.list() == {}
    assert [job.job_id for job in bench.fetch("w")] == [urgent]


def test_a_dead_letter_is_retried_on_the_same_account(bench: Bench, floor: Floor) -> None:
    # given
    floor.submit("t", priority="low")
    floor.begin(1)
    _, lease = floor.leases.pop()
    ((_, fields),) = bench.redis.xrange(lease.entry.stream)
    call = fail(bench, lease)
    call.args[call.args.index(b"garbage")] = fields[b"job"]  # type: ignore[index]
    bench.call(call)
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


def test_workers_of_the_version_before_get_tenants_jobs_as_any_others(bench: Bench) -> None:
    # given: one job is parked; then only workers live that never said that they know of tenants
    parked = bench.client.submit("x", tenant="t").id
    assert bench.lengths() == [0, 0, 0]
    bench.redis.xgroup_createconsumer(bench.partition.all_jobs[1], "workers", "old")
    # when
    direct = bench.client.submit("x", tenant="t").id
    # then: both stand where those look
    assert bench.lengths() == [0, 2, 0]
    assert bench.client.job(parked).status().tenant == "t"
    # and once a new one has come, they are parked
    facts = {"name": "m", "fingerprint": "f"}
    bench.call(calls.announce(bench.partition, "new", facts, mode="join", slots=1))
    new = bench.client.submit("x", tenant="t").id
    assert bench.lengths() == [0, 2, 0]
    assert {job.job_id for job in bench.fetch("new", 3)} == {parked, direct, new}


def test_limits_are_divided_among_partitions_and_found_again(bench: Bench) -> None:
    # given
    limits = TenantLimits(2.5, max_running_jobs=8, tokens_per_minute=1000)
    settings = bench.client.settings.model_copy(update={"partitions": 3})
    with Tenants(settings) as tenants:
        # when
        tenants.set("t", limits)
        # then
        assert tenants.list() == {"t": limits}
        assert tenants.show("t").limits == limits
        assert [limits.share(i, 3).max_running_jobs for i in range(3)] == [3, 3, 2]
        with pytest.raises(InvalidParameter, match="max_running_jobs"):
            tenants.set("t", TenantLimits(max_running_jobs=2))
        assert tenants.remove("t")
        assert not tenants.remove("t")
        assert tenants.list() == {}


def test_a_tenant_is_renamed_with_all_it_has_also_after_a_crash_in_the_middle(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: two jobs run, three wait, two may run
    limits = TenantLimits(3, max_running_jobs=2, max_queued_jobs=5, tokens_per_minute=9000)
    tenants.set("old", limits)
    floor.submit("old", 4)
    floor.begin(5)
    urgent = floor.submit("old", priority="high")[0]
    before = tenants.show("old")
    # when: a call is the last one before the crash; then all is done again, and once more
    bench.call(calls.rename_tenant(bench.partition, "old", "new", count=2))
    half = tenants.show("old"), tenants.show("new")
    assert [(one.waiting, one.running) for one in half] == [(1, 2), (2, 0)]
    assert [one.limits for one in half] == [limits, limits]
    assert sum(one.queued_tokens for one in half) == before.queued_tokens
    assert [tenants.rename("old", "new") for _ in range(2)] == [3, 0]
    # then: nothing is left of the old name
    after = tenants.show("new")
    assert (after.waiting, after.running, after.limits) == (3, 2, limits)
    assert (after.queued_tokens, after.queued_bytes) == (before.queued_tokens, before.queued_bytes)
    assert tenants.list() == {"new": limits}
    assert not bench.redis.exists(bench.partition.parked("old"))
    assert not bench.redis.hexists(bench.partition.tenants, "old")
    assert urgent.status().tenant == "new"
    # and limits hold as before, and what ends is counted off
    with pytest.raises(TenantLimited):
        floor.submit("new")
    assert floor.begin(5) == []
    for _ in range(2):
        floor.end_first(3)
    assert [job.job_id for job in bench.fetch("w", 1)] == [urgent.id]
    after = tenants.show("new")
    assert (after.waiting, after.running, after.served_tokens) == (2, 1, 6)


def test_a_tenant_is_not_renamed_to_one_with_other_limits(bench: Bench, tenants: Tenants) -> None:
    # given
    tenants.set("old", TenantLimits(2))
    tenants.set("new", TenantLimits(3))
    job = bench.client.submit("x", tenant="old")
    # when / then
    with pytest.raises(InvalidParameter, match="new has limits of its own"):
        tenants.rename("old", "new")
    with pytest.raises(InvalidParameter, match="has this name already"):
        tenants.rename("old", "old")
    assert job.status().tenant == "old"
    # and without them it joins the other
    assert tenants.remove("old")
    assert tenants.rename("old", "new") == 1
    assert (job.status().tenant, tenants.list()) == ("new", {"new": TenantLimits(3)})


@pytest.mark.parametrize("name", ["a b", "a:b", "x" * 65, "ä"])
def test_a_name_that_is_none_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidParameter, match="tenant"):
        bench.client.submit("x", tenant=name)


def test_what_the_version_before_has_parked_is_served_in_its_order(
    bench: Bench, floor: Floor, tenants: Tenants
) -> None:
    # given: three jobs as it kept them: without an entry, and their messages in a hash
    jobs = floor.submit("t", 3)
    own = bench.partition.load.removesuffix("load")
    for place, job in enumerate(jobs):
        state = bench.partition.state(job.id)
        entry = bench.redis.hget(state, "entry")
        ((_, fields),) = bench.redis.xrange(bench.partition.tenant_jobs, entry, entry)
        bench.redis.hset(f"{own}tenants:messages", job.id, fields[b"job"])
        bench.redis.zadd(f"{own}tenant:t:parked", {job.id: 10 - place})
        bench.redis.hdel(state, "share", "stream", "entry")
        bench.redis.hset(state, mapping={"counted": "1", "prompt": "1"})
    for name in ("tenants", "heads", "ready", "jobs", "parked:t"):
        bench.redis.delete(f"{own}shares:{name}")
    bench.redis.delete(bench.partition.tenant_jobs)
    bench.redis.hset(f"{own}tenants:clock", "vtime", "0")
    bench.redis.zadd(f"{own}tenants:jobs", {"t": 3})
    bench.redis.hset(f"{own}tenant:t", "vtime", "5")
    # when: a worker of it lives still, and then no more
    bench.redis.set(f"{own}tenants:worker", "1")
    bench.call(calls.sweep(bench.partition, [], again_s=60))
    assert bench.redis.exists(f"{own}tenants:clock")
    bench.redis.delete(f"{own}tenants:worker")
    bench.call(calls.sweep(bench.partition, [], again_s=60))
    # then
    assert tenants.show("t").waiting == 3
    fetched = [job.job_id for _ in range(3) for job in bench.fetch("w", 1)]
    assert fetched == [job.id for job in reversed(jobs)]
    assert not list(bench.redis.scan_iter(f"{own}tenants:*"))
    assert 0 < bench.redis.ttl(f"{own}tenant:t") <= 86400


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
    taken = calls.taken(outcome)
    assert (others, isinstance(taken, calls.Taken), lone.status().status) == (0, True, "running")
    # and a repeat after a lost reply is granted the same
    assert calls.taken(take_last(lone.id)[3]) == taken
    # and where another tenant waits, it takes none
    floor.submit("other")
    late = floor.submit("t")[0]
    assert take_last(late.id) == [0]
    assert floor.begin(9) == ["other", "t"]
