"""`rose worker` as a process: jobs through it, and what an operator sees."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
import redis

from rose.errors import InvalidParameter
from rose.protocol import GROUP, JobSpec, Partition, Priority, encode_job
from rose_producer import (
    Client,
    FinishedEvent,
)
from tests.support.bench import create_groups, wait_until
from tests.support.echo import SLOW, StartWorker, echoed, has_no_jobs


def test_jobs_of_every_kind_of_prompt_complete(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: some jobs that were there before the first worker
    early = client.submit("ab", max_new_tokens=5)
    start_worker()
    # when
    ids = client.submit([7, 8, 9], max_new_tokens=4)
    chat = client.submit([{"role": "user", "content": "hey"}], max_new_tokens=3)
    # then
    assert early.result(90).token_ids == echoed(b"ab", 5)
    assert ids.result(90).token_ids == (7, 8, 9, 7)
    assert chat.result(90).token_ids == echoed(b"hey", 3)
    assert ids.result(90).prompt_tokens == 3
    assert has_no_jobs(raw, partition)


def test_every_token_is_an_entry_of_its_own(client: Client, start_worker: StartWorker) -> None:
    start_worker()
    events = list(client.submit("abc", max_new_tokens=5).stream(timeout_s=90))
    assert [event.index for event in events] == [0, 1, 2, 3, 4, 5]
    assert isinstance(events[-1], FinishedEvent)


def test_a_worker_holds_no_more_jobs_than_it_has_slots(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    jobs = client.submit_many([("x" * 40)] * 8)
    start_worker(max_batch_size=2, **SLOW)
    # when / then
    held = []
    while not all(job.status().status == "finished" for job in jobs[:2]):
        held.append(sum(raw.xpending(s, GROUP)["pending"] for s in partition.all_jobs))
    assert max(held) == 2


def test_urgent_jobs_go_first(client: Client, start_worker: StartWorker) -> None:
    # given
    low = client.submit("x", priority="low", max_new_tokens=3)
    normal = client.submit("x", max_new_tokens=3)
    high = client.submit("x", priority="high", max_new_tokens=3)
    # when
    start_worker(max_batch_size=1, **SLOW)
    started = []
    for job in (high, normal, low):
        job.result(90)
        started.append(job.status().started_ms)
    # then
    assert started == sorted(started)


def test_without_redis_it_ends_with_one_line_after_bounded_retries() -> None:
    # when
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "rose_cli", "worker", "--engine=null", "--redis-retries=1"),
            "--redis-url=redis://:secret@127.0.0.1:1/0",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    # then
    assert ended.returncode == 1
    assert ended.stderr.startswith("rose: Redis cannot be used")
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stderr


# What an operator sees


def test_metrics_and_probes(client: Client, start_worker: StartWorker) -> None:
    # given
    worker = start_worker()
    # when
    for job in client.submit_many(["abc"] * 3):
        job.result(90)
    with pytest.raises(InvalidParameter):
        client.submit("x", temperature=-1)
    # then
    assert worker.http("/healthz") == "ok\n"
    assert worker.http("/readyz") == "ok\n"
    assert worker.http("/nothing") is None
    finished = 'rose_jobs_total{model="null",outcome="finished"} 3.0'
    wait_until(lambda: finished in (worker.http("/metrics") or ""))  # counted once it is in Redis
    metrics = worker.metrics()
    assert metrics["rose_generated_tokens_total"] == 3 * 256
    assert metrics["rose_prompt_tokens_total"] == 9
    assert metrics["rose_batch_capacity_sequences"] == 32
    assert metrics["rose_batch_sequences"] == 0
    assert metrics["rose_time_to_first_token_seconds_count"] == 3
    assert metrics["rose_inter_token_latency_seconds_count"] == 3 * 255
    page = worker.http("/metrics") or ""
    assert 'rose_finish_reasons_total{model="null",reason="length"} 3.0' in page


def test_logs_never_hold_prompts_or_answers(client: Client, start_worker: StartWorker) -> None:
    # given
    worker = start_worker()
    # when
    job = client.submit("a very secret prompt", max_new_tokens=3)
    job.result(90)
    # then
    wait_until(lambda: f"job {job.id} finished" in worker.log)
    assert "secret" not in worker.log
    assert "97 32" not in worker.log


def test_an_entry_read_while_draining_is_handed_back(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    """A signal while intake waits for a job: whatever that read brings is not lost."""
    # given
    worker = start_worker(lease_s=300)
    # when
    worker.signal(signal.SIGTERM)
    jobs = client.submit_many(["ab"] * 5)
    assert worker.terminate() == 0
    # then
    start_worker(lease_s=300)
    for job in jobs:
        assert len(job.result(90).token_ids) == 256
    assert has_no_jobs(raw, partition)


def test_a_raw_job_needs_no_state_beforehand(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    create_groups(raw, partition)
    start_worker()
    spec = JobSpec(id="mine-1", prompt="ab")
    # when
    raw.xadd(partition.jobs(Priority.LOW), {"job": encode_job(spec)})
    wait_until(lambda: raw.exists(partition.state("mine-1")))
    # then
    assert client.job("mine-1").result(90).token_ids == echoed(b"ab", 256)


def test_the_log_lines_are_one_line_each(client: Client, start_worker: StartWorker) -> None:
    worker = start_worker()
    client.submit("x", max_new_tokens=1).result(90)
    assert worker.terminate() == 0
    assert all(line.split()[2] in ("INFO", "WARNING") for line in worker.log.splitlines())
    assert json.dumps(worker.log).count("Traceback") == 0
