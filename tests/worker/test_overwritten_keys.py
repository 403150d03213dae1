"""Another program writes a value of another type over a key that all jobs of a partition share."""

import pytest
import redis

from rose.errors import JobNotFound
from rose.protocol import Partition, Priority
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker, echoed, running
from tests.support.keys import one_of_a_kind


def short(key: str) -> str:
    return key.partition("}:")[2]


@needs_redis_server
@pytest.mark.parametrize("name", [short(key) for key in one_of_a_kind(Partition("any"))])
def test_jobs_of_every_kind_go_on(
    client: Client, raw: redis.Redis, partition: Partition, start_worker: StartWorker, name: str
) -> None:
    # given: one worker that listens, and one that waits for its turn
    workers = [start_worker(), start_worker()]
    assert client.submit("ab", max_new_tokens=3, tenant="a").result(90).token_ids == echoed(
        b"ab", 3
    )
    (key,) = [one for one in one_of_a_kind(partition) if short(one) == name]
    # when
    raw.delete(key)
    raw.set(key, "somebody else's")
    # then
    jobs = [client.submit("ab", max_new_tokens=3, priority=priority) for priority in Priority]
    jobs.append(client.submit("ab", max_new_tokens=3, tenant="a"))
    assert [job.result(90).token_ids for job in jobs] == [echoed(b"ab", 3)] * 4
    wait_until(lambda: raw.type(key) != b"string")
    wait_until(lambda: any(f"overwritten the key {key}" in worker.log for worker in workers))


@needs_redis_server
@pytest.mark.parametrize("how", ["overwritten", "deleted"])
def test_who_waits_for_a_job_that_is_lost_with_its_stream_is_told(
    client: Client, raw: redis.Redis, partition: Partition, start_worker: StartWorker, how: str
) -> None:
    # given: a job that runs, and one that waits for its slot
    start_worker(max_batch_size=1, **SLOW)
    long = client.submit("ab", max_new_tokens=100_000)
    wait_until(lambda: running(long))
    waiting = client.submit("ab", max_new_tokens=3, priority="low")
    stream = partition.jobs(Priority.LOW)
    # when
    raw.delete(stream)
    if how == "overwritten":
        raw.set(stream, "somebody else's")
    # then
    with pytest.raises(JobNotFound, match="submit it again"):
        waiting.result(90)
    # and: jobs that come later are not
    long.cancel()
    assert client.submit("ab", max_new_tokens=3, priority="low").result(90).token_ids


@needs_redis_server
def test_a_worker_without_a_free_slot_makes_the_stream_of_tenants_anew(
    client: Client, raw: redis.Redis, partition: Partition, start_worker: StartWorker
) -> None:
    # given
    start_worker(max_batch_size=1, **SLOW)
    long = client.submit("ab", max_new_tokens=100_000)
    wait_until(lambda: running(long))
    # when
    raw.set(partition.tenant_jobs, "somebody else's")
    plain = client.submit("ab", max_new_tokens=3)
    wait_until(lambda: raw.type(partition.tenant_jobs) != b"string")
    # then
    long.cancel()
    assert plain.result(90).token_ids == echoed(b"ab", 3)
