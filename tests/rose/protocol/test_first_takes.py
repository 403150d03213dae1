"""A fetch that also takes: one call less for nearly every job."""

import pytest

from rose.protocol import EntryKey, JobEntry, JobSpec, Priority, calls, decode_job, encode_job
from rose.protocol.calls import NotTaken, Taken
from tests.support.bench import Bench

Begun = list[tuple[JobEntry, Taken | None]]


def fetch(bench: Bench, take_id: str, worker: str = "w") -> Begun:
    """The entries that it reads, and what was granted."""
    call = calls.fetch(bench.partition, worker, 9, ageing_ms=1000, take_id=take_id, model="m")
    reply = bench.call(call)
    entries = [
        JobEntry(EntryKey(stream.decode(), entry.decode()), decode_job(raw).id)
        for stream, flat in reply[0]
        for entry, raw in zip(flat[::2], flat[1::2], strict=True)
    ]
    granted: Begun = []
    for entry, outcome in zip(entries, reply[6], strict=True):
        taken = calls.taken(outcome, take_id) if outcome else None
        assert not isinstance(taken, NotTaken | calls.OfOtherModel)
        granted.append((entry, taken))
    return granted


@pytest.mark.parametrize("tenant", ["", "t"])
@pytest.mark.parametrize("job_id", ["x", "x" * 40, "x" * 80])
def test_a_new_job_is_read_and_taken_in_one_call(bench: Bench, tenant: str, job_id: str) -> None:
    # given
    job = bench.client.submit("x", tenant=tenant, job_id=job_id, deadline_s=1000)
    # when
    ((entry, taken),) = fetch(bench, "take")
    # then
    assert taken is not None
    assert entry.job_id == job.id
    assert (taken.epoch, taken.attempts, taken.logged) == (1, 1, 0)
    assert taken.deadline_ms
    status = job.status()
    assert (status.status, status.worker, status.epoch, status.attempts) == ("running", "w", 1, 1)
    assert bench.redis.zscore(bench.partition.running, job.id)


@pytest.mark.parametrize("tenant", ["", "t"])
def test_a_take_of_the_same_id_grants_what_a_lost_reply_did(bench: Bench, tenant: str) -> None:
    # given
    bench.client.submit("x", tenant=tenant)
    ((entry, taken),) = fetch(bench, "lost")
    # when / then
    assert bench.take("w", entry, take_id="lost", alone=False) == taken
    # and another take finds that the first one has brought no token
    assert bench.take("w", entry, take_id="other", alone=False) is NotTaken.SUSPECT


def test_what_is_not_new_is_left_to_take(bench: Bench) -> None:
    # given: a job that came without submit, one that was cancelled, one whose log somebody has
    # written into, and one that was handed back
    foreign = JobSpec(id="foreign", prompt="x")
    bench.redis.xadd(bench.partition.jobs(Priority.NORMAL), {"job": encode_job(foreign)})
    back = bench.client.submit("x", priority="high")
    lease = bench.start("w")
    held = JobEntry(lease.entry, lease.job_id)
    bench.call(calls.release(bench.partition, lease.entry.stream, "w", [held]))
    cancelled, written = bench.client.submit_many(["x", "x"])
    cancelled.cancel()
    bench.redis.xadd(bench.partition.tokens(written.id), {"event": b"?"}, id="1-0")
    # when
    fetched = fetch(bench, "take")
    # then
    assert [entry.job_id for entry, _ in fetched] == [back.id, "foreign", cancelled.id, written.id]
    assert not any(taken for _, taken in fetched)
    assert [back.status().status, cancelled.status().status] == ["queued", "cancelled"]
    assert written.status().epoch == 0


@pytest.mark.parametrize("tenant", ["", "t"])
def test_without_an_id_nothing_is_begun(bench: Bench, tenant: str) -> None:
    # given
    job = bench.client.submit("x", tenant=tenant)
    # when
    ((entry, taken),) = fetch(bench, "")
    # then
    assert taken is None
    assert job.status().status == "queued"
    assert isinstance(bench.take("w", entry), Taken)
