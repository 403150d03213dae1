"""What a worker says of itself under load, against what is in Redis and what subscribers saw."""

import time
from concurrent.futures import ThreadPoolExecutor

import redis

from rose.protocol import Partition, Priority
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, Job, Request
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker
from tests.support.metric_samples import samples, value

SLOTS = 4


def when_seen(job: Job) -> list[float]:
    """Of each event of a job, the wall clock when it reached a subscriber."""
    return [time.time() for _ in job.stream(timeout_s=60)]


def test_under_load_they_say_what_redis_and_the_subscribers_saw(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: three times as many jobs as slots, and one that cannot be read
    worker = start_worker(max_batch_size=SLOTS, **SLOW)
    before = samples(worker.http("/metrics") or "")
    lengths = [4 + 2 * n for n in range(3 * SLOTS)]
    jobs = client.submit_many([Request(f"{n:02}", sampling={"max_new_tokens": n}) for n in lengths])
    raw.xadd(partition.jobs(Priority.LOW), {"job": b"garbage"})
    # when
    with ThreadPoolExecutor(len(jobs)) as pool:
        watching = pool.map(when_seen, jobs)
        while jobs[-1].status().status != "finished":
            check_gauges(worker, raw, partition, jobs)
        seen = list(watching)
    wait_until(lambda: worker.metrics()["rose_job_duration_seconds_count"] == len(jobs))
    # then: counted are the tokens in the logs, once each
    after = samples(worker.http("/metrics") or "")
    plain = worker.metrics()
    assert plain["rose_generated_tokens_total"] == sum(lengths)
    assert plain["rose_prompt_tokens_total"] == 2 * len(jobs)
    assert plain["rose_inter_token_latency_seconds_count"] == sum(lengths) - len(jobs)
    assert value(after, "rose_jobs_total", model="null", outcome="finished") == len(jobs)
    assert value(after, "rose_finish_reasons_total", model="null", reason="length") == len(jobs)
    # a step computes as many tokens as requests, and never more than there are slots
    assert plain["rose_batch_size_sequences_sum"] == sum(lengths)
    steps = plain["rose_batch_size_sequences_count"]
    size = "rose_batch_size_sequences_bucket"
    assert value(after, size, model="null", le=f"{SLOTS}.0") == steps
    # what could not be read
    reasons = {"reason": "malformed_message", "model": "null"}
    assert value(after, "rose_dead_letters_total", **reasons) == 1
    assert value(after, "rose_jobs_total", model="null", outcome="dead_letter") == 1
    assert plain["rose_invalid_messages_total"] == 1
    check_times(plain, jobs, seen)
    # and no series came to those that were there before
    assert {key for key in after.keys() - before.keys() if "queue" not in dict(key[1])} == set()


def check_gauges(
    worker: WorkerProcess, raw: redis.Redis, partition: Partition, jobs: list[Job]
) -> None:
    """In mid-work: no token is counted before it is in the log, no slot that there is not."""
    metrics = worker.metrics()
    logged = sum(int(raw.hget(partition.state(job.id), "tokens") or 0) for job in jobs)
    assert metrics["rose_generated_tokens_total"] <= logged
    assert metrics["rose_batch_sequences"] <= SLOTS


def check_times(metrics: dict[str, float], jobs: list[Job], seen: list[list[float]]) -> None:
    """Each sum lies between two others that are below and above it whatever the machine does: a
    take is in Redis before its job's wait is measured, a first token is counted before the second
    is sent. Redis' times are whole milliseconds. It dates the ends, too, but how long the reply to
    a take was under way no worker knows."""
    states = [job.status() for job in jobs]
    rounding = 0.002 * len(jobs)
    enqueued = sum(state.enqueued_ms or 0 for state in states) / 1000
    taken = sum(state.started_ms or 0 for state in states) / 1000
    first, second = (sum(times[n] for times in seen) for n in (0, 1))
    least = taken - enqueued - rounding
    wait = metrics["rose_queue_wait_seconds_sum"]
    ttft = metrics["rose_time_to_first_token_seconds_sum"]
    duration = metrics["rose_job_duration_seconds_sum"]
    assert metrics["rose_queue_wait_seconds_count"] == len(jobs)
    assert metrics["rose_time_to_first_token_seconds_count"] == len(jobs)
    assert least > 0.5  # they did wait for each other
    assert least <= wait <= first - enqueued + rounding
    assert wait <= ttft <= second - enqueued + rounding
    assert ttft + metrics["rose_inter_token_latency_seconds_sum"] <= duration + 1e-6
