"""A deleted job: nobody finds it any more, and soon nothing of it is left."""

from collections.abc import Callable

import pytest

from rose.errors import InvalidParameter, JobCancelled, JobNotFound
from rose.protocol import GROUP, JobEntry, calls
from rose.protocol.calls import NotTaken, Taken
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, FailedEvent, Job
from tests.support.bench import Bench, dead_letter, token, wait_until

#: How long the state of a deleted job may outlive its end, in seconds.
SOON_S = 60


def keys_of(bench: Bench, job: Job, key: str = "k") -> list[str]:
    place = bench.partition
    return [place.state(job.id), place.tokens(job.id), place.idempotency(key)]


def left_of(bench: Bench, job: Job) -> int:
    return int(bench.redis.exists(*keys_of(bench, job)))


def load_of(bench: Bench) -> list[int]:
    fields = ("tokens", "bytes", "cancelled", "cancelled_bytes")
    return [int(value or 0) for value in bench.redis.hmget(bench.partition.load, fields)]


def test_of_a_job_that_has_ended_nothing_is_left(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", idempotency_key="k", record=b"r", owner="o")
    lease = bench.start("w")
    bench.append(lease, token(0))
    bench.finish(lease, 1)
    assert left_of(bench, job) == 3
    # when
    assert job.delete()
    # then
    assert left_of(bench, job) == 0
    for ask in (job.record, job.status, job.cancel, lambda: job.result(5)):
        with pytest.raises(JobNotFound):
            ask()
    # and it can be repeated
    assert not job.delete()
    assert bench.client.submit("x", idempotency_key="k").id != job.id


def test_there_is_nothing_to_delete_of_a_job_that_nobody_knows(bench: Bench) -> None:
    assert not bench.client.job("0-nobody").delete()
    assert bench.redis.exists(bench.partition.state("0-nobody")) == 0


def test_a_waiting_job_is_cancelled_at_once_and_never_begun(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", idempotency_key="k", record=b"r" * 1000, owner="o")
    # when
    assert job.delete()
    # then: its subscriber hears, nobody finds it
    with pytest.raises(JobCancelled):
        job.result(5)
    with pytest.raises(JobNotFound):
        job.record()
    assert bench.redis.hmget(bench.partition.state(job.id), "record", "owner") == [None, None]
    assert bench.redis.exists(bench.partition.idempotency("k")) == 0
    # and its state stays until its entry is gone, however long that takes
    assert bench.redis.ttl(bench.partition.state(job.id)) == -1
    assert job.delete()
    assert bench.take("w", *bench.fetch("w")) is NotTaken.NOTHING_TO_DO
    assert 0 < bench.redis.ttl(bench.partition.state(job.id)) <= SOON_S
    assert bench.lengths() == [0, 0, 0]
    assert load_of(bench) == [0, 0, 0, 0]


def test_a_running_job_is_stopped_and_goes_soon_after_its_end(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", idempotency_key="k", record=b"r", owner="o")
    lease = bench.start("w")
    # when
    assert job.delete()
    # then: its worker is told, as of a cancellation
    assert bench.append(lease, token(0)) == ["CANCEL"]
    with pytest.raises(JobNotFound):
        job.record()
    assert job.delete()
    # and the end is logged and deletes it
    assert bench.finish(lease, 1) == "OK"
    assert job.status().status == "finished"
    for key in keys_of(bench, job)[:2]:
        assert 0 < bench.redis.ttl(key) <= SOON_S
    assert bench.lengths() == [0, 0, 0]
    assert load_of(bench) == [0, 0, 0, 0]
    # and what is left can be deleted too
    assert job.delete()
    assert left_of(bench, job) == 0


def test_a_repeated_end_of_a_deleted_job_is_no_loss(bench: Bench) -> None:
    # given: a lost reply
    job, lease = bench.begin()
    job.delete()
    bench.finish(lease, 0)
    # then
    assert bench.finish(lease, 0) == "DUP"


def test_a_deleted_key_stands_for_a_new_job_while_the_old_one_runs(bench: Bench) -> None:
    # given
    old = bench.client.submit("x", idempotency_key="k")
    lease = bench.start("w")
    old.delete()
    # when
    new = bench.client.submit("x", idempotency_key="k")
    bench.finish(lease, 0)
    # then: the end of the old one leaves the key to the new one
    assert new.id != old.id
    assert bench.client.submit("x", idempotency_key="k").id == new.id
    assert bench.redis.ttl(bench.partition.idempotency("k")) > SOON_S


def test_a_job_that_was_cancelled_while_it_waited_is_deleted_once_its_entry_is_gone(
    bench: Bench,
) -> None:
    # given
    job = bench.client.submit("x", record=b"r")
    job.cancel()
    # when
    assert job.delete()
    # then
    with pytest.raises(JobNotFound):
        job.record()
    assert bench.redis.exists(bench.partition.state(job.id)) == 1
    assert bench.take("w", *bench.fetch("w")) is NotTaken.NOTHING_TO_DO
    assert 0 < bench.redis.ttl(bench.partition.state(job.id)) <= SOON_S
    assert load_of(bench) == [0, 0, 0, 0]


def test_a_job_whose_entry_was_not_acknowledged_is_not_begun_again(bench: Bench) -> None:
    # given: the call that ended it stopped before it acknowledged the entry
    job, lease = bench.begin()
    raw = bench.redis.xrange(lease.entry.stream)[0][1]
    bench.finish(lease, 0)
    bench.redis.xadd(lease.entry.stream, raw, id="*")
    (again,) = bench.fetch("w")
    bench.redis.hset(bench.partition.state(job.id), "entry", again.entry.id)
    # when
    assert job.delete()
    # then
    assert bench.take("w", again) is NotTaken.NOTHING_TO_DO
    assert bench.lengths() == [0, 0, 0]
    assert 0 < bench.redis.ttl(bench.partition.state(job.id)) <= SOON_S


def test_a_deleted_job_that_moves_is_cancelled_by_its_next_worker(bench: Bench) -> None:
    # given: handed back with a token
    job, lease = bench.begin()
    bench.append(lease, token(0))
    held = JobEntry(lease.entry, job.id)
    bench.call(calls.release(bench.partition, lease.entry.stream, "w", [held]))
    # when
    assert job.delete()
    # then
    (entry,) = bench.fetch("v")
    taken = bench.take("v", entry)
    assert isinstance(taken, Taken)
    assert taken.cancel_requested


def test_nothing_is_kept_of_a_deleted_job_that_cannot_run(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    job.delete()
    # when
    failed = FailedEvent(index=0, code="crash_loop", message="m")
    assert bench.call(dead_letter(bench, lease.entry, job.id, failed)) == b"DEAD"
    # then
    assert bench.redis.xlen(bench.partition.dead) == 0
    assert bench.lengths() == [0, 0, 0]
    assert 0 < bench.redis.ttl(bench.partition.state(job.id)) <= SOON_S


def test_a_lost_entry_of_a_deleted_job_ends_it(bench: Bench) -> None:
    # given: somebody has deleted the entry of a running job
    job, lease = bench.begin()
    bench.redis.xack(lease.entry.stream, GROUP, lease.entry.id)
    bench.redis.xdel(lease.entry.stream, lease.entry.id)
    job.delete()
    # when: the sweep names it, and its caller ends it
    reply = bench.call(calls.sweep(bench.partition, [], again_s=0))
    (lost,) = calls.swept(bench.partition, reply).lost
    assert lost.job_id == job.id
    event = FailedEvent(index=0, code="entry_lost", message="m")
    assert bench.publish([calls.Append(lost, 0, end=event)]) == ["OK"]
    # then
    assert 0 < bench.redis.ttl(bench.partition.state(job.id)) <= SOON_S
    assert bench.redis.zcard(bench.partition.running) == 0


def test_a_worker_frees_the_slot_of_a_deleted_job(
    client: Client, broker: EmbeddedBroker, start_worker: Callable[..., object]
) -> None:
    # given
    start_worker(max_batch_size=1, min_step_s=0.005)
    running = client.submit("x", max_new_tokens=1_000_000, record=b"r")
    wait_until(lambda: running.status().tokens > 2)
    # when
    assert running.delete()
    # then
    assert client.submit("y", max_new_tokens=2).result(90).finish_reason == "length"
    assert running.status().status == "cancelled"


# An id that is used again


def test_the_id_of_a_deleted_job_whose_entry_is_gone_is_free(bench: Bench) -> None:
    # given: it ran, and is not expired yet
    job = bench.client.submit("x", job_id="mine", record=b"r")
    lease = bench.start("w")
    bench.append(lease, token(0))
    assert job.delete()
    assert bench.append(lease, token(1)) == ["CANCEL"]
    assert bench.finish(lease, 2) == "OK"
    # when
    assert bench.client.submit("y", job_id="mine").id == "mine"
    # then: it is a new one, whose earlier worker can add nothing
    again = bench.start("w2")
    assert bench.append(lease, token(2)) == ["FENCED"]
    bench.append(again, token(0))
    bench.finish(again, 1)
    assert job.result(90).token_ids == token(0).token_ids
    assert job.record().record == b""
    assert load_of(bench) == [0, 0, 0, 0]


def test_the_id_of_a_tenants_deleted_job_that_waited_is_free(bench: Bench) -> None:
    # given
    bench.redis.set(f"{bench.partition.load.removesuffix('load')}shares:worker", "1")
    job = bench.client.submit("x", job_id="mine", tenant="a")
    assert job.delete()
    # when
    assert bench.client.submit("y", job_id="mine", tenant="a").id == "mine"
    # then
    assert job.status().status == "queued"
    assert not job.status().cancel_requested


@pytest.mark.parametrize("begun", [False, True], ids=["waits", "runs"])
def test_the_id_of_a_deleted_job_that_has_an_entry_is_refused(bench: Bench, begun: bool) -> None:
    # given
    job = bench.client.submit("x", job_id="mine")
    lease = bench.start("w") if begun else None
    assert job.delete()
    # when
    with pytest.raises(InvalidParameter, match="'mine' was deleted") as refused:
        bench.client.submit("y", job_id="mine")
    # then
    assert refused.value.param == "job_id"
    if lease is None:  # the next worker finds the entry
        assert bench.take("w", *bench.fetch("w")) is NotTaken.NOTHING_TO_DO
    else:
        bench.finish(lease, 0)
    assert bench.client.submit("y", job_id="mine").id == "mine"
