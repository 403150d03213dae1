"""Leases: renewed, and handed back."""

from rose.protocol import GROUP, JobEntry, calls
from rose.protocol.calls import Taken
from tests.support.bench import Bench, token


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
