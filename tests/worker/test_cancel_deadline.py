"""Jobs that end before their time: cancelled, or past their deadline."""

import time

import pytest
import redis

from rose.errors import DeadlineExceeded
from rose.protocol import Partition
from rose_producer import CancelledEvent, Client, Job, TokenEvent
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker, echoed, has_no_jobs, running


def test_a_cancelled_job_stops_and_frees_its_slot(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: one slot, taken by a job that would run for long
    start_worker(max_batch_size=1, **SLOW)
    long = client.submit("abc", max_new_tokens=100_000)
    waiting = client.submit("de", max_new_tokens=2)
    wait_until(lambda: running(long, tokens=3))
    # when
    assert long.cancel() is True
    # then
    events = list(long.stream(timeout_s=90))
    assert isinstance(events[-1], CancelledEvent)
    assert [event.index for event in events] == list(range(len(events)))
    assert waiting.result(90).token_ids == echoed(b"de", 2)
    assert has_no_jobs(raw, partition)


def test_the_gauges_know_when_the_last_job_was_cancelled(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    worker = start_worker(**SLOW)
    job = client.submit("abc", max_new_tokens=100_000)
    wait_until(lambda: worker.metrics().get("rose_batch_sequences") == 1)
    # when
    job.cancel()
    # then: though no step follows
    wait_until(lambda: worker.metrics().get("rose_batch_sequences") == 0)


def test_a_cancellation_whose_message_was_lost_is_seen_at_the_next_token(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    start_worker(**SLOW)
    job = client.submit("abc", max_new_tokens=100_000)
    wait_until(lambda: running(job))
    # when: only the flag
    raw.hset(partition.state(job.id), "cancel", "1")
    # then
    assert isinstance(list(job.stream(timeout_s=90))[-1], CancelledEvent)


def test_a_job_past_its_deadline_does_not_begin(client: Client, start_worker: StartWorker) -> None:
    # given
    job = client.submit("x", deadline_s=0.001)
    time.sleep(0.01)
    # when
    start_worker()
    # then
    assert tokens_until_its_deadline(job) == 0


def test_a_job_that_runs_ends_at_its_deadline(client: Client, start_worker: StartWorker) -> None:
    start_worker(**SLOW)
    for deadline_s in (0.3, 3, 30):  # more where a busy machine does not begin it in that time
        job = client.submit("x", max_new_tokens=100_000, deadline_s=deadline_s)
        if tokens := tokens_until_its_deadline(job):
            break
    assert tokens > 0


def tokens_until_its_deadline(job: Job) -> int:
    with pytest.raises(DeadlineExceeded):
        job.result(90)
    return sum(isinstance(event, TokenEvent) for event in job.stream(timeout_s=90))
