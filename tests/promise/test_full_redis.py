"""A Redis that is full of waiting prompts drains by itself, and everybody is told meanwhile."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import redis

from rose.errors import JobCancelled, QueueFull, RedisFull
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, Job, Request
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import has_no_jobs, running, serving

pytestmark = needs_redis_server

QUEUE = "full"
PROMPT = "x" * 200_000
#: What Redis may use beyond what it has at first. On Redis 8.0 a queue that may fill half of 24 MiB
#: is not full before Redis is.
ROOM = 40 * 2**20
LIMITS = {"max_queued_bytes": 2**40}


@pytest.fixture
def client(own_redis: EmbeddedBroker) -> Iterator[Client]:
    with Client(redis_url=own_redis.url, queue=QUEUE, redis_retries=1, **LIMITS) as client:
        yield client


def fill(client: Client, prompt: str, jobs: list[Job]) -> None:
    """Submit until Redis refuses."""
    with pytest.raises(RedisFull, match="maxmemory") as full:
        jobs.extend(client.submit(prompt, max_new_tokens=2) for _ in range(10_000))
    assert full.value.in_doubt == ()


def readiness(worker: WorkerProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{worker.http_port}/readyz", timeout=90
        ) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_running_and_waiting_jobs_end_and_a_new_worker_starts(
    own_redis: EmbeddedBroker, admin: redis.Redis, client: Client
) -> None:
    # given: a worker in mid-sentence, whose one slot is taken, and Redis at its limit
    settings = {"queue": QUEUE, "max_batch_size": 1, "min_step_s": 0.02, **LIMITS}
    with serving("early", own_redis.url, **settings) as early:
        long = client.submit("ab", max_new_tokens=100_000)
        wait_until(lambda: running(long))
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + ROOM)
        jobs: list[Job] = []
        fill(client, PROMPT, jobs)
        # when / then: readiness says so, once Redis has given its buffers back and is full again
        wait_until(lambda: fill(client, "x", jobs) or readiness(early)[0] == 503)
        assert "out of memory" in early.log
        cancelled, *waiting = jobs
        # and a cancel works
        assert cancelled.cancel()
        with pytest.raises(JobCancelled):
            cancelled.result(90)
        # and the job that runs goes on
        logged = long.status().tokens
        wait_until(lambda: running(long, logged + 5))
        # and a worker that starts now takes part
        with WorkerProcess("late", own_redis.url, engine="null", queue=QUEUE, **LIMITS) as late:
            results = [job.result(90) for job in waiting]
            assert late.running
        assert all(len(result.token_ids) == 2 for result in results)
        assert len(results) > 100
        # then: it is over without anybody's help
        assert long.cancel()
        wait_until(lambda: has_no_jobs(admin, Partition(QUEUE)))
        wait_until(lambda: readiness(early) == (200, "ok\n"))
        assert client.submit("ab", max_new_tokens=2).result(90).token_ids == (97, 98)


def test_a_queue_is_full_before_redis_is(
    own_redis: EmbeddedBroker, admin: redis.Redis, client: Client
) -> None:
    # given: workers that hold half of the memory for waiting jobs
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] + ROOM)
    with (
        serving("one", own_redis.url, queue=QUEUE, max_queued_bytes=ROOM // 2, min_step_s=60),
        # when
        pytest.raises(QueueFull) as full,
    ):
        client.submit_many(Request(PROMPT) for _ in range(1000))
    # then
    assert full.value.unit == "bytes"
    assert full.value.limit == ROOM // 2
    assert len(full.value.accepted) == (ROOM // 2) // (len(PROMPT) + 1100)
