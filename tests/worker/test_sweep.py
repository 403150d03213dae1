"""What foreign commands and backups leave behind is found, and so is what a worker leaves."""

import threading
from collections.abc import AsyncIterator

import pytest
import redis

from rose.errors import BrokerUnavailable, JobFailed
from rose.protocol import GROUP, Partition, Priority
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from rose_worker.broker import Broker
from rose_worker.settings import WorkerSettings
from rose_worker.sweep import Sweep
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, token, wait_until
from tests.support.echo import SLOW, StartWorker, echoed, has_no_jobs, running
from tests.support.proxy import Proxy


@pytest.fixture
async def sweep(any_broker: EmbeddedBroker, queue: str, bench: Bench) -> AsyncIterator[Sweep]:
    broker = Broker(WorkerSettings(redis_url=any_broker.url, queue=queue), "w")
    await broker.start()
    yield Sweep(broker, again_s=0)
    await broker.close()


async def test_entries_in_no_pending_list_are_released(bench: Bench, sweep: Sweep) -> None:
    # given: two of which one had been begun, one that is held and one that is unread
    for _ in range(4):
        bench.client.submit("x")
    begun = bench.start("lost")
    bench.append(begun, token(0))
    bench.fetch("lost")
    held = bench.start("holder")
    stream = begun.entry.stream
    bench.redis.xgroup_delconsumer(stream, GROUP, "lost")
    # when
    await sweep.run(bench.partition)
    # then
    pending = bench.redis.xpending_range(stream, GROUP, "-", "+", 10)
    owners = [entry["consumer"] for entry in pending]
    assert owners == [b"released", b"released", b"holder"]
    assert all(entry["time_since_delivered"] > 80_000_000 for entry in pending[:2])
    assert bench.append(held, token(0)) == ["OK"]


async def test_a_job_without_an_entry_fails_and_says_so(bench: Bench, sweep: Sweep) -> None:
    # given
    job, lease = bench.begin()
    other, _ = bench.begin("w2")
    bench.append(lease, token(0))
    bench.redis.xdel(lease.entry.stream, lease.entry.id)
    # when
    await sweep.run(bench.partition)
    # then
    first, end = job.stream(timeout_s=90)
    assert first == token(0)
    assert (end.type, end.index, getattr(end, "code", "")) == ("failed", 1, "entry_lost")
    assert other.status().status == "running"
    assert bench.append(lease, token(1)) == ["GAP"]
    assert bench.client.queue_status().queued_tokens == 257
    # and it is not looked at again
    assert bench.redis.zrange(bench.partition.running, 0, -1) == [other.id.encode()]


async def test_a_portion_is_looked_at_in_each_call(bench: Bench, sweep: Sweep) -> None:
    # given: more entries than one look reads, the last of which is owned by nobody
    jobs = bench.client.submit_many(["x"] * 150)
    bench.fetch("holder", 149)
    ((_, last),) = [(job.job_id, job.entry) for job in bench.fetch("lost", 1)]
    bench.redis.xgroup_delconsumer(last.stream, GROUP, "lost")
    # when
    await sweep.run(bench.partition)
    before = bench.redis.xpending(last.stream, GROUP)["pending"]
    await sweep.run(bench.partition)
    # then
    assert (before, bench.redis.xpending(last.stream, GROUP)["pending"]) == (149, 150)
    assert len(jobs) == 150
    # and the next look begins again
    bench.redis.xgroup_delconsumer(last.stream, GROUP, "holder")
    await sweep.run(bench.partition)
    assert bench.redis.xpending(last.stream, GROUP)["pending"] == 101


def test_the_set_of_running_jobs_holds_no_others(bench: Bench) -> None:
    # given
    _, ended = bench.begin()
    _, running_lease = bench.begin()
    # when
    bench.finish(ended, 0)
    # then
    members = bench.redis.zrange(bench.partition.running, 0, -1)
    assert members == [running_lease.job_id.encode()]


@needs_redis_server
def test_a_worker_whose_name_was_deleted_loses_no_job(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    worker = start_worker(**SLOW)
    job = client.submit("abc", max_new_tokens=200)
    wait_until(lambda: running(job, tokens=5))
    # when
    raw.xgroup_delconsumer(partition.jobs(Priority.NORMAL), GROUP, worker.name)
    # then
    assert job.result(90).token_ids == echoed(b"abc", 200)
    wait_until(lambda: has_no_jobs(raw, partition))


async def test_a_job_whose_stream_was_deleted_ends_too(bench: Bench, sweep: Sweep) -> None:
    # given
    job, lease = bench.begin()
    bench.redis.delete(lease.entry.stream)
    # when
    await sweep.run(bench.partition)
    # then
    with pytest.raises(JobFailed, match="its entry is gone"):
        job.result(90)


# Leaving


@needs_redis_server
async def test_an_entry_that_is_read_while_a_worker_leaves_is_not_lost(
    broker: EmbeddedBroker, queue: str, raw: redis.Redis, partition: Partition
) -> None:
    """The reply to a fetch was lost, and Redis carries it out late."""
    # given
    entry = raw.xadd(partition.jobs(Priority.NORMAL), {"job": b"x"})
    looked = "cmdstat_xpending"

    def fetch_late(before: int) -> None:
        # after the worker has looked into the second stream, which is this one
        wait_until(lambda: raw.info("commandstats").get(looked, {}).get("calls", 0) > before + 1)
        raw.xreadgroup(GROUP, "w", {partition.jobs(Priority.NORMAL): ">"})

    with Proxy(broker.port) as proxy:
        worker = Broker(WorkerSettings(redis_url=proxy.url, queue=queue), "w")
        await worker.start()
        before = raw.info("commandstats").get(looked, {}).get("calls", 0)
        late = threading.Thread(target=fetch_late, args=(before,))
        late.start()
        # when
        proxy.request_delay_s = 0.3
        await worker.leave(partition)
        late.join()
        await worker.close()
    # then
    pending = raw.xpending_range(partition.jobs(Priority.NORMAL), GROUP, "-", "+", 10)
    assert [item["message_id"] for item in pending] == [entry]


async def test_what_a_leaving_worker_owns_unknowingly_is_released(
    any_broker: EmbeddedBroker, queue: str, bench: Bench
) -> None:
    # given: a fetch whose reply was lost
    bench.client.submit_many(["x", "y"])
    entries = [job.entry for job in bench.fetch("w", 2)]
    worker = Broker(WorkerSettings(redis_url=any_broker.url, queue=queue), "w")
    await worker.start()
    # when: also after a lost reply
    await worker.leave(bench.partition)
    await worker.leave(bench.partition)
    await worker.close()
    # then
    stream = bench.partition.jobs(Priority.NORMAL)
    pending = bench.redis.xpending_range(stream, GROUP, "-", "+", 10)
    assert [item["message_id"].decode() for item in pending] == [entry.id for entry in entries]
    assert {item["consumer"] for item in pending} == {b"released"}
    names = [info["name"] for info in bench.redis.xinfo_consumers(stream, GROUP)]
    assert names == [b"released"]


@needs_redis_server
def test_an_entry_with_the_last_possible_id_blocks_a_stream_for_a_moment_only(
    raw: redis.Redis, client: Client, partition: Partition, start_worker: StartWorker
) -> None:
    # given: a foreign one, after which Redis takes no other; jobs before it and beside it
    start_worker()
    raw.xadd(partition.jobs(Priority.NORMAL), {"job": b"x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    wait_until(lambda: raw.xlen(partition.dead) == 1)
    # then: the worker goes on
    assert client.submit("ab", priority="high", max_new_tokens=3).result(90).token_ids == echoed(
        b"ab", 3
    )

    # and makes the stream anew
    def submitted() -> str | None:
        try:
            return client.submit("ab", job_id="0-again", max_new_tokens=3).id
        except BrokerUnavailable as error:
            assert "last possible id" in str(error)  # noqa: PT017 - until it is made anew
            return None

    wait_until(submitted)
    assert client.job("0-again").result(90).token_ids == echoed(b"ab", 3)
