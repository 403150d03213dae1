"""Which job a worker gets whose slots are all taken, and what becomes of the one it hands back."""

import pytest

from rose.protocol import GROUP, RELEASED, JobEntry, Priority, calls, decode_job
from rose.protocol.calls import Lease, Taken, new_take_id
from rose.protocol.tenants import TenantLimits
from rose_producer import Job, Tenants, TokenEvent
from tests.support.bench import Bench, token, wait_until

_AGEING_MS = 60_000
#: Later than any test takes.
_NEVER = 2**50


def _ask(
    bench: Bench, worker: str, due_before: str, *, count: int = 1, ageing_ms: int = _AGEING_MS
) -> list[str]:
    """The ids of the jobs that it gets."""
    call = calls.fetch(
        bench.partition,
        worker,
        count,
        ageing_ms=ageing_ms,
        take_id=new_take_id(),
        hand_backs=due_before,
    )
    streams = bench.call(call)[0]
    return [decode_job(raw).id for _, flat in streams for raw in flat[1::2]]


def _all(level: int = 3) -> str:
    """Due before it is whatever has a higher priority than this level, unless between tenants."""
    return f"{_NEVER} {_NEVER if level > 2 else 0} 0 0"


@pytest.mark.parametrize(("level", "order"), [(3, ["high", "normal"]), (2, ["high"])])
def test_it_gets_one_job_of_a_higher_priority(bench: Bench, level: int, order: list[str]) -> None:
    # given
    ids = {
        priority: bench.client.submit("x", priority=priority).id
        for priority in ("low", "normal", "high")
    }
    # when / then
    for priority in order:
        assert _ask(bench, "w", _all(level)) == [ids[priority]]
    assert _ask(bench, "w", _all(level)) == []


def test_it_gets_none_that_is_due_later(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", priority="high")
    enqueued_ms = job.status().enqueued_ms
    assert enqueued_ms is not None
    # when / then: a low one that came so long ago goes first
    assert _ask(bench, "w", f"{enqueued_ms - 1} {enqueued_ms - 1} 0 0") == []
    assert _ask(bench, "w", f"{enqueued_ms + 1} 0 0 0") == [job.id]


def test_it_gets_none_before_an_older_one_that_is_due_first(bench: Bench) -> None:
    # given
    bench.client.submit("x", priority="low")
    time_of = bench.redis.time()
    wait_until(lambda: bench.redis.time() > (time_of[0], time_of[1] + 1000))
    high = bench.client.submit("x", priority="high")
    # when / then
    assert _ask(bench, "w", _all(), ageing_ms=0) == []
    assert _ask(bench, "w", _all()) == [high.id]


def test_one_worker_listens_for_all(bench: Bench) -> None:
    # given
    assert _ask(bench, "first", _all()) == []
    bench.client.submit("x", priority="high")
    # when / then
    assert _ask(bench, "second", _all()) == []
    assert len(_ask(bench, "first", _all())) == 1


def test_it_leaves_the_job_to_a_worker_that_listens_with_free_slots(bench: Bench) -> None:
    # given
    assert bench.fetch("idle") == []
    job = bench.client.submit("x", priority="high")
    # when / then
    assert _ask(bench, "full", _all()) == []
    assert [one.job_id for one in bench.fetch("idle")] == [job.id]


def _passing(bench: Bench, levels: str = "1") -> None:
    bench.redis.hset(bench.partition.tenant_limits, ":passes", levels)


def test_a_tenants_job_gets_a_slot_if_its_class_passes(bench: Bench) -> None:
    # given
    _passing(bench)
    for priority in ("high", "normal"):
        bench.client.submit("x", priority=priority, tenant="ann")
    due = f"{_NEVER} {_NEVER} {_NEVER} {_NEVER}"
    # when / then
    assert len(_ask(bench, "w", due)) == 1
    assert _ask(bench, "w", due) == []
    status = bench.client.tenants()
    assert (status.waiting, status.running) == (1, 1)


def test_a_job_of_nobody_gets_a_tenants_slot_only_if_its_class_passes(bench: Bench) -> None:
    # given: all slots are a tenant's
    job = bench.client.submit("x", priority="high")
    due = f"0 0 {_NEVER} {_NEVER}"
    # when / then
    assert _ask(bench, "w", due) == []
    _passing(bench)
    assert _ask(bench, "w", due) == [job.id]


def _handed_back(bench: Bench) -> Job:
    job = bench.client.submit("abc", priority="low")
    lease = bench.start("w")
    bench.append(lease, token(0))
    entry = JobEntry(lease.entry, job.id)
    again = calls.release(bench.partition, lease.entry.stream, "w", [entry], take_ids=["another"])
    assert bench.call(again) == 0
    assert job.status().status == "running"
    _make_room(bench, lease)
    return job


def _make_room(bench: Bench, lease: Lease) -> None:
    entry = JobEntry(lease.entry, lease.job_id)
    call = calls.release(
        bench.partition, lease.entry.stream, "w", [entry], take_ids=[lease.take_id]
    )
    assert bench.call(call) == 1


def test_what_made_room_waits_behind_new_jobs_of_a_higher_priority(bench: Bench) -> None:
    # given
    low = _handed_back(bench)
    high = bench.client.submit("x", priority="high")
    # when / then
    assert _ask(bench, "v", "-") == [high.id]
    assert _ask(bench, "v", "-") == [low.id]


def test_what_was_handed_back_otherwise_goes_first(bench: Bench) -> None:
    # given: a worker drains
    low = bench.client.submit("abc", priority="low")
    lease = bench.start("w")
    entry = JobEntry(lease.entry, low.id)
    bench.call(calls.release(bench.partition, lease.entry.stream, "w", [entry]))
    bench.client.submit("x", priority="high")
    # when / then
    assert _ask(bench, "v", "-") == [low.id]


def test_without_hand_backs_what_was_released_goes_first(bench: Bench) -> None:
    # given
    low = _handed_back(bench)
    bench.client.submit("x", priority="high")
    # when / then
    assert _ask(bench, "v", "") == [low.id]


def test_it_is_no_failed_attempt(bench: Bench) -> None:
    # given
    low = _handed_back(bench)
    assert low.status().attempts == 0
    # when
    (entry,) = bench.fetch("v")
    taken = bench.take("v", entry, alone=False)
    # then
    assert isinstance(taken, Taken)
    assert (taken.attempts, taken.epoch, taken.logged) == (1, 2, 1)


def test_a_released_job_of_a_higher_priority_gets_a_slot_too(bench: Bench) -> None:
    # given: a worker drains
    job = bench.client.submit("x", priority="high")
    (entry,) = bench.fetch("w")
    bench.call(calls.release(bench.partition, entry.entry.stream, "w", [entry]))
    stream = bench.partition.jobs(Priority.HIGH)
    assert [one["name"] for one in bench.redis.xinfo_consumers(stream, GROUP)].count(
        RELEASED.encode()
    )
    # when / then: the listener of before is still named
    bench.redis.delete(bench.partition.idle[0])
    assert _ask(bench, "v", _all()) == [job.id]


def test_slots_that_are_left_are_for_what_made_room(bench: Bench) -> None:
    # given
    low = _handed_back(bench)
    high = bench.client.submit("x", priority="high")
    call = calls.fetch(
        bench.partition, "v", 2, ageing_ms=_AGEING_MS, take_id=new_take_id(), hand_backs="-"
    )
    # when / then: there may be more, so the worker asks again at once
    streams, _, _, more, *_ = bench.call(call)
    assert [decode_job(raw).id for _, flat in streams for raw in flat[1::2]] == [high.id]
    assert more == 1
    assert _ask(bench, "v", "-") == [low.id]


@pytest.mark.parametrize("whose", ["bob", ""])
def test_between_tenants_what_made_room_waits_behind_what_passes(bench: Bench, whose: str) -> None:
    # given
    _passing(bench)
    low = bench.client.submit("abc", priority="low", tenant="ann")
    _make_room(bench, bench.start("w"))
    bench.client.submit("y", tenant="bob")
    urgent = bench.client.submit("x", priority="high", tenant=whose or None)
    # when / then
    assert _ask(bench, "v", "-") == [urgent.id]
    assert _ask(bench, "v", "-") == [low.id]


def test_what_passes_itself_goes_on_before_what_passes_later(bench: Bench) -> None:
    # given
    _passing(bench, "12")
    normal = bench.client.submit("abc", tenant="ann")
    _make_room(bench, bench.start("w"))
    bench.client.submit("x", priority="high", tenant="bob")
    # when / then
    assert _ask(bench, "v", "-") == [normal.id]


@pytest.mark.parametrize("said", [40, 200], ids=["below the advance", "above it"])
def test_a_tenant_is_charged_once_for_what_is_computed_twice(
    bench: Bench, tenants: Tenants, said: int
) -> None:
    # given: jobs that are alike, of which one makes room twice
    for tenant, makes_room in (("ann", True), ("bob", False)):
        bench.client.submit("abc", priority="low", tenant=tenant)
        lease = bench.start("w")
        # when
        for index in (0, said, 2 * said):
            if makes_room and index:
                _make_room(bench, lease)
                lease = bench.start("w")
            event = TokenEvent(index=index, token_ids=(7,) * said, text="x")
            assert bench.append(lease, event) == ["OK"]
        assert bench.finish(lease, 3 * said) == "OK"
    # then
    records = bench.redis.hmget(bench.partition.tenants, "ann", "bob")
    used, undisturbed = (float(record.split()[0]) for record in records)
    assert used == undisturbed > 3 * said
    for tenant in ("ann", "bob"):
        status = tenants.show(tenant)
        assert (status.running, status.served_tokens) == (0, 3 * said)


def test_what_made_room_counts_as_running_for_its_tenants_limit(
    bench: Bench, tenants: Tenants
) -> None:
    # given
    _passing(bench)
    tenants.set("ann", TenantLimits(max_running_jobs=1))
    low = bench.client.submit("abc", priority="low", tenant="ann")
    _make_room(bench, bench.start("w"))
    second = bench.client.submit("abc", priority="high", tenant="ann")
    # when / then: the second may not run beside it, though it passes
    assert _ask(bench, "v", "-", count=2) == [low.id]
    assert _ask(bench, "v", "-", count=2) == []
    assert second.status().status == "queued"
    assert tenants.show("ann").limited
