"""A queue that no worker serves: a deadline holds, and a client says that nobody is there."""

import asyncio
import logging
import threading

import pytest
import redis

from rose.errors import ConfigurationError, DeadlineExceeded
from rose.protocol import JobEntry, Partition, Priority, calls
from rose.protocol.calls import NotTaken
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client, Job, served
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, token, wait_until
from tests.support.echo import StartWorker, echoed

SAID = "no worker serves queue"


def now_ms(server: redis.Redis) -> int:
    seconds, microseconds = server.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def pass_deadline(bench: Bench, job: Job, *, ms_ago: int) -> None:
    bench.redis.hset(bench.partition.state(job.id), "deadline_ms", now_ms(bench.redis) - ms_ago)


def load_of(bench: Bench) -> list[int]:
    fields = ("tokens", "bytes", "cancelled", "parked_normal")
    return [int(value or 0) for value in bench.redis.hmget(bench.partition.load, fields)]


# Deadlines


def test_a_subscriber_sees_the_deadline_of_a_waiting_job(bench: Bench) -> None:
    # given: two that wait, and a third that comes later
    job = bench.client.submit("x", deadline_s=0.5)
    ends: list[list[str]] = []

    def follow() -> None:
        ends.append([event.type for event in job.stream(timeout_s=90)])

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    # when
    with pytest.raises(DeadlineExceeded):
        job.result(90)
    for thread in threads:
        thread.join()
    # then: one end in the log
    assert ends == [["failed"], ["failed"]]
    assert bench.redis.xlen(bench.partition.tokens(job.id)) == 1
    # and no worker begins on it
    assert bench.take("w", *bench.fetch("w")) is NotTaken.NOTHING_TO_DO
    assert load_of(bench) == [0, 0, 0, 0]
    assert bench.redis.ttl(bench.partition.state(job.id)) > 0


def test_who_asks_for_the_status_sees_it_too(bench: Bench) -> None:
    # given
    jobs = [bench.client.submit("x", deadline_s=100, record=b"r") for _ in range(3)]
    for job in jobs:
        assert job.status().status == "queued"
    for job in jobs[:2]:
        pass_deadline(bench, job, ms_ago=1)
    # then
    assert jobs[0].status().status == "failed"
    assert (jobs[1].record().status, jobs[1].record().record) == ("failed", b"r")
    assert jobs[2].status().status == "queued"


def test_a_parked_job_of_a_tenant_ends_and_leaves_its_account(bench: Bench) -> None:
    # given
    bench.redis.set(f"{bench.partition.load.removesuffix('load')}shares:worker", "1")
    job = bench.client.submit("x", tenant="a", deadline_s=100)
    pass_deadline(bench, job, ms_ago=1)
    # when
    with pytest.raises(DeadlineExceeded):
        job.result(90)
    # then
    assert load_of(bench) == [0, 0, 0, 0]
    assert bench.redis.xlen(bench.partition.tenant_jobs) == 0
    (tenant,) = [one for one in bench.client.tenants().top if one.name == "a"] or [None]
    assert tenant is None or (tenant.waiting, tenant.running) == (0, 0)


@pytest.mark.parametrize("tenant", ["", "a"])
def test_a_job_that_ran_is_left_to_its_worker_for_a_while(bench: Bench, tenant: str) -> None:
    # given
    bench.redis.set(f"{bench.partition.load.removesuffix('load')}shares:worker", "1")
    job = bench.client.submit("x", deadline_s=100, tenant=tenant)
    lease = bench.start("w")
    assert bench.append(lease, token(0)) == ["OK"]
    # when: it has just passed
    pass_deadline(bench, job, ms_ago=100)
    assert job.status().status == "running"
    # when: nobody has ended it
    pass_deadline(bench, job, ms_ago=60_000)
    events = list(job.stream(timeout_s=90))
    # then
    assert [(event.type, event.index) for event in events] == [("tokens", 0), ("failed", 1)]
    assert job.status().status == "failed"
    assert load_of(bench)[:2] == [0, 0]
    # and its worker adds nothing, if it lives
    assert bench.append(lease, token(1)) == ["GAP"]
    taken = bench.take("w", JobEntry(lease.entry, job.id))
    assert taken is NotTaken.NOTHING_TO_DO
    assert load_of(bench) == [0, 0, 0, 0]
    assert bench.redis.zcard(bench.partition.running) == 0


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_job_that_was_ended_leaves_nothing_when_its_worker_wakes_up(
    bench: Bench, tenant: str | None
) -> None:
    # given: a job whose worker stands still until long after its deadline
    bench.redis.set(f"{bench.partition.load.removesuffix('load')}shares:worker", "1")
    job = bench.client.submit("x", deadline_s=100, tenant=tenant)
    lease = bench.start("w")
    assert bench.append(lease, token(0)) == ["OK"]
    pass_deadline(bench, job, ms_ago=60_000)
    assert list(job.stream(timeout_s=90))[-1].type == "failed"
    # when
    assert bench.finish(lease, 1) == "DUP"
    # then
    keys = [bench.partition.state(job.id), bench.partition.tokens(job.id)]
    assert all(bench.redis.ttl(key) > 0 for key in keys)
    assert load_of(bench) == [0, 0, 0, 0]
    assert bench.lengths() == [0, 0, 0]


def test_tokens_that_the_caller_has_not_seen_are_kept(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    bench.append(lease, token(0))
    pass_deadline(bench, job, ms_ago=60_000)
    # when
    again_ms = bench.call(calls.end_late(bench.partition, job.id, 0))
    # then
    assert again_ms > 0
    assert job.status().tokens == 1


# Silence


async def test_a_client_warns_once_and_goes_on_waiting(
    broker: EmbeddedBroker,
    queue: str,
    start_worker: StartWorker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given
    def said() -> int:
        return sum(f"{SAID} {queue}" in record.getMessage() for record in caplog.records)

    with caplog.at_level(logging.WARNING, "rose.client"):
        async with AsyncClient(redis_url=broker.url, queue=queue) as client:
            jobs = await client.submit_many(["ab"] * 3)
            answers = [asyncio.create_task(job.result(90)) for job in jobs]
            # when
            async with asyncio.timeout(90):
                while not said():
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(start_worker)
            # then
            for answer in answers:
                assert (await answer).token_ids == echoed(b"ab", 256)
    assert said() == 1


def test_where_a_worker_lives_nothing_is_said(
    client: Client, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    # given: a first token that takes longer than the client waits
    start_worker(min_step_s=2.5)
    with caplog.at_level(logging.WARNING, "rose.client"):
        assert client.submit("ab", max_new_tokens=1).result(90).token_ids == echoed(b"ab", 1)
    assert SAID not in caplog.text


# Partitions


@needs_redis_server
@pytest.mark.parametrize(("own", "theirs"), [(1, 2), (3, 2)])
def test_another_number_of_partitions_is_refused(
    broker: EmbeddedBroker, queue: str, start_worker: StartWorker, own: int, theirs: int
) -> None:
    # given
    start_worker(partitions=theirs)
    with Client(redis_url=broker.url, queue=queue, partitions=own) as client:
        # then: each time
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=rf"is {own}, .* have {theirs}:"):
                client.submit("ab")
        assert client.queue_status().partitions == theirs
    with Client(redis_url=broker.url, queue=queue, partitions=theirs) as client:
        assert client.submit("ab", max_new_tokens=1).result(90).token_ids == echoed(b"ab", 1)


@needs_redis_server
def test_workers_that_come_later_are_seen(
    broker: EmbeddedBroker, queue: str, start_worker: StartWorker, raw: redis.Redis
) -> None:
    # given
    with Client(redis_url=broker.url, queue=queue, partitions=3) as client:
        client.submit("ab")
        start_worker(partitions=2)
        wait_until(lambda: raw.hget(Partition(queue).model, "partitions") == b"2")

        # then
        def refused() -> bool:
            try:
                client.submit("ab")
            except ConfigurationError:
                return True
            return False

        wait_until(refused)


def test_a_running_client_learns_that_jobs_are_placed(
    client: Client, raw: redis.Redis, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: workers that place no jobs
    monkeypatch.setattr(served, "_AGAIN_S", 0.01)
    raw.hset(partition.model, "partitions", "1")
    client.submit("x" * 3000)
    (before,) = raw.xrange(partition.jobs(Priority.NORMAL))
    assert b"chain" not in before[1]
    # when: they do from now on
    raw.hset(partition.model, "placement", "1")

    def has_chain() -> bool:
        client.submit("x" * 3000)
        return b"chain" in raw.xrevrange(partition.jobs(Priority.NORMAL), count=1)[0][1]

    # then
    wait_until(has_chain)
