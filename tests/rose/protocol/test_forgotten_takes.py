"""A failover that forgets a take: the heir of the primary knows nothing of it and gives the job to
another worker, by a take that has the same number. Until the first one renews its leases both
believe that the job is theirs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rose.protocol import GROUP, JobEntry, calls
from rose.protocol.calls import Lease
from rose_producer import FailedEvent, Job, TokenEvent
from tests.support.bench import Bench, to_append, token

#: Returns a job, the lease of the worker whose take was forgotten, and that of the next one.
Begin = Callable[[Bench], tuple[Job, Lease, Lease]]


def other_token(index: int) -> TokenEvent:
    """What another engine says in this place."""
    return TokenEvent(index=index, token_ids=(900 + index,), text=f"o{index} ")


@contextmanager
def forgotten(bench: Bench, job: Job) -> Iterator[None]:
    """Afterwards Redis knows no more of the job than before, as the heir of a primary."""
    state, log = bench.partition.state(job.id), bench.partition.tokens(job.id)
    fields, events = bench.redis.hgetall(state), bench.redis.xrange(log)
    stream = fields[b"stream"]
    owners = bench.redis.xpending_range(stream, GROUP, "-", "+", 9)
    yield
    bench.redis.delete(state, log)
    bench.redis.hset(state, mapping=fields)
    for entry, event in events:
        bench.redis.xadd(log, event, id=entry)
    bench.redis.xack(stream, GROUP, fields[b"entry"])
    for owner in owners:
        ids = [owner["message_id"]]
        bench.redis.xclaim(stream, GROUP, owner["consumer"], 0, ids, force=True, justid=True)
    if not owners:
        bench.redis.xgroup_setid(stream, GROUP, "0")


def from_the_beginning(bench: Bench) -> tuple[Job, Lease, Lease]:
    job = bench.client.submit("x")
    with forgotten(bench, job):
        stale = bench.start("w1")
    return job, stale, bench.start("w2")


def in_mid_sentence(bench: Bench) -> tuple[Job, Lease, Lease]:
    job, lease = bench.begin("w0")
    bench.append(lease, token(0), token(1))
    hand_back(bench, lease, "w0")
    with forgotten(bench, job):
        stale = bench.start("w1")
    return job, stale, bench.start("w2")


def hand_back(bench: Bench, lease: Lease, worker: str) -> None:
    entry = JobEntry(lease.entry, lease.job_id)
    assert bench.call(calls.release(bench.partition, lease.entry.stream, worker, [entry])) == 1


both_places = pytest.mark.parametrize(
    ("begin", "logged"), [(from_the_beginning, 0), (in_mid_sentence, 2)]
)


@both_places
def test_a_log_has_the_tokens_of_the_take_that_redis_knows(
    bench: Bench, begin: Begin, logged: int
) -> None:
    # given
    job, stale, owner = begin(bench)
    # when: the call of the first one is repeated until the heir answers, and comes before the
    # other's first, then again and again wherever the log ends
    outcomes = bench.append(stale, token(logged))
    for index in range(logged, logged + 3):
        assert bench.append(owner, other_token(index)) == ["OK"]
        outcomes += bench.append(stale, token(index + 1))
        outcomes += bench.publish([to_append(stale, token(index + 1), token(index + 2))])
    # then
    assert set(outcomes) == {"FENCED"}
    assert bench.finish(owner, logged + 3) == "OK"
    assert job.result(1).token_ids == (
        *(100 + index for index in range(logged)),
        *(900 + index for index in range(logged, logged + 3)),
    )


@both_places
def test_a_job_is_ended_by_the_take_that_redis_knows(
    bench: Bench, begin: Begin, logged: int
) -> None:
    # given
    job, stale, owner = begin(bench)
    # when / then: nor does the first one's end acknowledge the entry of the other
    assert bench.finish(stale, logged) == "FENCED"
    assert job.status().status == "running"
    assert bench.redis.xpending(owner.entry.stream, GROUP)["pending"] == 1
    assert bench.append(owner, other_token(logged)) == ["OK"]


@both_places
def test_a_lease_is_renewed_for_the_take_that_redis_knows(
    bench: Bench, begin: Begin, logged: int
) -> None:
    # given
    job, stale, owner = begin(bench)
    # when: the first one renews, drains and leaves
    stream, entry = stale.entry.stream, JobEntry(stale.entry, job.id)
    lost = bench.call(calls.renew(stream, "w1", [stale.entry.id]))
    handed_back = bench.call(calls.release(bench.partition, stream, "w1", [entry]))
    left = bench.call(calls.leave(bench.partition, "w1"))
    # then
    assert (lost, handed_back, left) == ([stale.entry.id.encode()], 0, 0)
    assert bench.append(owner, other_token(logged)) == ["OK"]


def test_a_worker_that_takes_its_own_job_again_has_it_by_the_new_take_alone(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    with forgotten(bench, job):
        earlier = bench.start("w")
    later = bench.start("w")
    # when / then
    assert bench.append(earlier, token(0)) == ["FENCED"]
    assert bench.append(later, other_token(0)) == ["OK"]


def test_a_job_that_was_handed_back_has_no_take(bench: Bench) -> None:
    # given
    job, lease = bench.begin("w1")
    # when
    hand_back(bench, lease, "w1")
    # then
    assert not bench.redis.hexists(bench.partition.state(job.id), "take")
    assert bench.append(lease, token(0)) == ["FENCED"]


@pytest.mark.parametrize("take", [None, "a b", b"\xff"])
def test_a_job_without_a_take_and_without_an_entry_is_ended(
    bench: Bench, take: str | bytes | None
) -> None:
    # given: somebody has deleted the entry of a job that was handed back, and may have written
    job, lease = bench.begin("w1")
    hand_back(bench, lease, "w1")
    if take is not None:
        bench.redis.hset(bench.partition.state(job.id), "take", take)
    bench.redis.xdel(lease.entry.stream, lease.entry.id)
    # when
    reply = bench.call(calls.sweep(bench.partition, [], again_s=0))
    (lost,) = calls.swept(bench.partition, reply).lost
    # then
    event = FailedEvent(index=0, code="entry_lost", message="m")
    assert bench.publish([calls.Append(lost, 0, end=event)]) == ["OK"]
    assert job.status().status == "failed"
