"""Clocks that are an hour wrong: the producer's, a worker's, that of Redis. Redis' clock counts."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from rose.errors import DeadlineExceeded
from rose.protocol import Partition, Priority, calls
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, wait_until
from tests.support.clocks import SKEWED_WORKER, RedisClock, needs_compiler, redis_with_a_clock
from tests.support.echo import SLOW, StartWorker, echoed, running, serving

pytestmark = needs_redis_server

HOUR_S = 3600


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[tuple[EmbeddedBroker, RedisClock]]:
    with redis_with_a_clock(tmp_path) as pair:
        yield pair


# A producer's


@pytest.mark.parametrize("skew_s", [-HOUR_S, HOUR_S])
def test_a_deadline_of_a_producer_with_a_wrong_clock_holds(
    client: Client, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, skew_s: int
) -> None:
    # given
    right = time.time
    start_worker(**SLOW)
    # when
    monkeypatch.setattr(time, "time", lambda: right() + skew_s)
    soon = client.submit("x", max_new_tokens=100_000, deadline_s=0.5)
    later = client.submit("ab", max_new_tokens=50, deadline_s=60)
    monkeypatch.undo()
    # then
    assert later.result(90).token_ids == echoed(b"ab", 50)
    with pytest.raises(DeadlineExceeded):
        soon.result(90)
    assert abs((later.status().enqueued_ms or 0) / 1000 - right()) < 600


# A worker's


@pytest.mark.parametrize("skew_s", [-HOUR_S, HOUR_S])
def test_a_deadline_holds_in_a_worker_with_a_wrong_clock(
    client: Client, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, skew_s: int
) -> None:
    # given
    monkeypatch.setenv("SKEW_S", str(skew_s))
    worker = start_worker(program=SKEWED_WORKER, **SLOW)
    # when
    soon = client.submit("x", max_new_tokens=100_000, deadline_s=0.5)
    later = client.submit("ab", max_new_tokens=50, deadline_s=60)
    # then
    assert later.result(90).token_ids == echoed(b"ab", 50)
    with pytest.raises(DeadlineExceeded):
        soon.result(90)
    # and what is said of the queue has no hour in it
    held = client.submit("x", max_new_tokens=100_000)
    gauge = "rose_queue_oldest_pending_age_seconds"
    wait_until(lambda: worker.metrics().get(gauge, 0.0) > 0)
    assert worker.metrics()[gauge] < 60
    held.cancel()
    assert worker.metrics()["rose_queue_wait_seconds_sum"] < 60


def test_times_in_a_jobs_state_are_of_one_clock(
    client: Client, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setenv("SKEW_S", str(-HOUR_S))
    start_worker(program=SKEWED_WORKER)
    # when
    job = client.submit("x", max_new_tokens=1)
    job.result(90)
    # then
    status = job.status()
    times = [status.enqueued_ms or 0, status.started_ms or 0, status.ended_ms or 0]
    assert 0 not in times
    assert times == sorted(times)


# That of Redis


@needs_compiler
@pytest.mark.parametrize("offset_s", [-HOUR_S, HOUR_S])
def test_jobs_go_on_when_the_clock_of_redis_is_set(
    clocked: tuple[EmbeddedBroker, RedisClock], queue: str, offset_s: int
) -> None:
    # given
    broker, clock = clocked
    with (
        Client(redis_url=broker.url, queue=queue) as client,
        serving("a", broker.url, queue=queue, **SLOW),
        serving("b", broker.url, queue=queue, **SLOW),
    ):
        job = client.submit("abc", max_new_tokens=200)
        wait_until(lambda: running(job, tokens=5))
        # when
        clock.set(offset_s)
        after = client.submit("de", max_new_tokens=200, deadline_s=60)
        # then
        assert job.result(90).token_ids == echoed(b"abc", 200)
        assert after.result(90).token_ids == echoed(b"de", 200)


@needs_compiler
def test_a_takeover_is_not_late_after_redis_was_set_back(
    clocked: tuple[EmbeddedBroker, RedisClock], queue: str
) -> None:
    # given
    broker, clock = clocked
    slow = {"queue": queue, "lease_s": 1, **SLOW}
    with (
        Client(redis_url=broker.url, queue=queue) as client,
        serving("victim", broker.url, **slow) as victim,
    ):
        job = client.submit("abc", max_new_tokens=200)
        wait_until(lambda: running(job, tokens=5))
        with serving("other", broker.url, **slow):
            # when
            clock.set(-HOUR_S)
            victim.kill()
            killed_at = time.monotonic()
            wait_until(lambda: job.status().epoch >= 2)
            taken_over_s = time.monotonic() - killed_at
            # then: within two leases, on a busy machine too; not in an hour
            assert taken_over_s < 60
            assert job.result(90).token_ids == echoed(b"abc", 200)


@needs_compiler
def test_the_gauges_have_a_reader_after_redis_was_set_back(
    clocked: tuple[EmbeddedBroker, RedisClock], queue: str
) -> None:
    # given: an elected reader, which has died since
    broker, clock = clocked
    bench = Bench(broker, queue)

    def elect(worker: str) -> int:
        return int(bench.call(calls.elect(bench.partition, worker, lease_ms=15_000)))

    assert (elect("w1"), elect("w2")) == (1, 0)
    # when
    clock.set(-HOUR_S)
    # then
    assert elect("w2") == 1
    assert elect("w1") == 0
    bench.close()


@needs_compiler
def test_a_sweep_sees_jobs_that_were_begun_before_redis_was_set_back(
    clocked: tuple[EmbeddedBroker, RedisClock], queue: str
) -> None:
    # given
    broker, clock = clocked
    bench = Bench(broker, queue)
    job, lease = bench.begin()
    bench.redis.xdel(lease.entry.stream, lease.entry.id)
    # when
    clock.set(-HOUR_S)
    # then
    swept = calls.swept(bench.partition, bench.call(calls.sweep(bench.partition, [], again_s=60)))
    assert [lost.job_id for lost in swept.lost] == [job.id]
    bench.close()


def test_an_entry_of_an_hour_ago_has_waited_an_hour(
    start_worker: StartWorker, client: Client, raw: redis.Redis, partition: Partition
) -> None:
    """Waiting is measured by Redis' clock: an entry's id is its time."""
    # given: enqueued by hand, since nobody can submit into the past
    job = client.submit("ab", max_new_tokens=1)
    stream = partition.jobs(Priority.NORMAL)
    ((entry, fields),) = raw.xrange(stream)
    raw.delete(stream)
    raw.delete(partition.state(job.id))
    past_ms = int(entry.decode().partition("-")[0]) - HOUR_S * 1000
    raw.xadd(stream, fields, id=f"{past_ms}-0")
    # when
    worker = start_worker()
    wait_until(lambda: raw.exists(partition.state(job.id)))
    job.result(90)
    # then
    wait_until(lambda: worker.metrics().get("rose_queue_wait_seconds_sum", 0) > 0)
    assert HOUR_S <= worker.metrics()["rose_queue_wait_seconds_sum"] < HOUR_S + 600
