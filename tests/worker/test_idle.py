"""Idle workers: one of each partition listens, and the others cost nothing."""

import time

import redis

from rose.protocol import Partition, Priority, encode_job
from rose.protocol.jobs import JobSpec
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import StartWorker, echoed


def listener(raw: redis.Redis, partition: Partition) -> str:
    return (raw.get(partition.idle[0]) or b"").decode()


def reads(raw: redis.Redis) -> int:
    calls: int = raw.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"]
    return calls


@needs_redis_server
def test_a_job_wakes_one_idle_worker_however_many_there_are(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    workers = [start_worker() for _ in range(5)]
    wait_until(lambda: raw.exists(partition.idle[2]))
    before, began = reads(raw), time.monotonic()
    # when
    held_by = set()
    for _ in range(50):
        job = client.submit("ab", max_new_tokens=2)
        assert job.result(90).token_ids == echoed(b"ab", 2)
        held_by.add(job.status().worker)
    # then: a read for each job, and two a second
    assert reads(raw) - before <= 60 + 4 * (time.monotonic() - began)
    # and all of them have had their turn
    assert held_by == {worker.name for worker in workers}


def test_a_killed_listener_is_replaced_and_a_foreign_job_is_heard(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    workers = {worker.name: worker for worker in (start_worker(), start_worker())}
    wait_until(lambda: listener(raw, partition) and raw.exists(partition.idle[2]))
    # when
    victim = listener(raw, partition)
    workers[victim].kill()
    job = JobSpec(id="0-foreign", prompt="ab")
    raw.xadd(partition.jobs(Priority.NORMAL), {"job": encode_job(job)})
    # then
    wait_until(lambda: raw.exists(partition.state(job.id)))
    assert client.job(job.id).result(90).token_ids == echoed(b"ab", 256)
    wait_until(lambda: listener(raw, partition) not in ("", victim))


def test_a_drained_listener_hands_on_at_once(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    workers = {worker.name: worker for worker in (start_worker(), start_worker())}
    wait_until(lambda: listener(raw, partition) and raw.exists(partition.idle[2]))
    # when
    leaves = listener(raw, partition)
    assert workers.pop(leaves).terminate() == 0
    # then
    wait_until(lambda: listener(raw, partition) in workers)
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == echoed(b"ab", 2)
