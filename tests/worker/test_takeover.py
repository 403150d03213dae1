"""Crashes, zombies, drains: a job moves, and goes on with its next token."""

import signal

import redis

from rose.protocol import GROUP, Partition, Priority
from rose_producer import Client, Request
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker, echoed, has_no_jobs, running


def test_a_worker_that_is_stopped_past_its_lease_publishes_nothing_afterwards(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    zombie = start_worker(lease_s=0.5, **SLOW)
    job = client.submit("abc", max_new_tokens=150)
    wait_until(lambda: running(job, tokens=5))
    # when: it sleeps through its lease, another takes over, it wakes up
    zombie.signal(signal.SIGSTOP)
    start_worker(lease_s=0.5, **SLOW)
    wait_until(lambda: job.status().epoch >= 2)
    zombie.signal(signal.SIGCONT)
    # then
    events = list(job.stream(timeout_s=90))
    assert [event.index for event in events] == list(range(151))
    assert job.result(90).token_ids == echoed(b"abc", 150)
    assert zombie.running


def test_a_long_job_keeps_its_lease(client: Client, start_worker: StartWorker) -> None:
    # given: two workers
    start_worker(lease_s=0.5, **SLOW)
    start_worker(lease_s=0.5, **SLOW)
    for _ in range(10):  # a machine that stalls for a lease may take one job from its worker
        # when: a job runs for several leases
        job = client.submit("abc", max_new_tokens=100)
        job.result(90)
        if (epoch := job.status().epoch) == 1:
            break
    # then
    assert epoch == 1


def test_a_drain_finishes_what_runs_and_leaves_the_rest(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    worker = start_worker(max_batch_size=1, **SLOW)
    first = client.submit("ab", max_new_tokens=80)
    second = client.submit("cd", max_new_tokens=3)
    wait_until(lambda: running(first))
    # when
    status = worker.terminate()
    # then
    assert status == 0
    assert first.status().status == "finished"
    assert second.status().status == "queued"
    assert raw.xinfo_consumers(partition.jobs(Priority.NORMAL), GROUP) == []
    start_worker()
    assert second.result(90).token_ids == echoed(b"cd", 3)


def test_a_drain_under_load_is_no_more_than_a_pause_to_clients(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: two workers with all slots full and more that waits; leases too long to explain it
    settings = {"lease_s": 300, "max_batch_size": 8}
    leaves = start_worker(grace_s=0.5, min_step_s=0.3, **settings)
    sampling = {"max_new_tokens": 80}
    jobs = client.submit_many([Request(f"{n:02}", sampling=sampling) for n in range(24)])
    wait_until(lambda: leaves.metrics().get("rose_batch_sequences") == 8)
    start_worker(**settings, **SLOW)
    # when
    assert leaves.terminate() == 0
    # then
    for n, job in enumerate(jobs):
        events = list(job.stream(timeout_s=90))
        assert [event.index for event in events] == list(range(81))
        assert job.result(90).token_ids == echoed(f"{n:02}".encode(), 80)
        assert job.status().attempts == 1
    assert has_no_jobs(raw, partition)


def test_a_second_signal_ends_the_grace_period(client: Client, start_worker: StartWorker) -> None:
    # given
    worker = start_worker(grace_s=300, **SLOW)
    job = client.submit("abc", max_new_tokens=100_000)
    wait_until(lambda: running(job))
    # when
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "draining" in worker.log)
    # then
    assert worker.terminate() == 0
    assert job.status().status == "queued"
