"""`rose worker` as a process, on the best broker there is, with the null engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import msgpack
import pytest
import redis

from demo.broker import EmbeddedBroker
from demo.workers import WorkerProcess
from producer import (
    CancelledEvent,
    Client,
    FailedEvent,
    FinishedEvent,
    Job,
    Request,
    TokenEvent,
)
from protocol import GROUP, JobSpec, Partition, Priority, encode_job
from rose_errors import DeadlineExceeded, InvalidParameter, JobFailed, PromptTooLong
from tests.bench import Bench, wait_until
from tests.conftest import create_groups, needs_redis_server
from tests.worker.mortal import POISON

StartWorker = Callable[..., WorkerProcess]

#: Slow enough to do something to a job while it runs.
SLOW = {"min_step_s": 0.02}


def echoed(prompt: bytes, count: int) -> tuple[int, ...]:
    """What the null engine answers."""
    return tuple(prompt[i % len(prompt)] for i in range(count))


def running(job: Job, tokens: int = 1) -> bool:
    status = job.status()
    return status.status == "running" and status.tokens >= tokens


def has_no_jobs(raw: redis.Redis, partition: Partition) -> bool:
    return all(
        raw.xlen(stream) == 0 and raw.xpending(stream, GROUP)["pending"] == 0
        for stream in partition.all_jobs
    )


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
    assert early.result(20).token_ids == echoed(b"ab", 5)
    assert ids.result(20).token_ids == (7, 8, 9, 7)
    assert chat.result(20).token_ids == echoed(b"hey", 3)
    assert ids.result(20).prompt_tokens == 3
    assert has_no_jobs(raw, partition)


def test_every_token_is_an_entry_of_its_own(client: Client, start_worker: StartWorker) -> None:
    start_worker()
    events = list(client.submit("abc", max_new_tokens=5).stream(timeout_s=20))
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
        job.result(20)
        started.append(job.status().started_ms)
    # then
    assert started == sorted(started)


# Bad input


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"job": b"\xc1garbage"}, "malformed_message"),
        ({"something": b"else"}, "malformed_message"),
        ({"job": b"\x91" * 5000}, "malformed_message"),
        ({"job": b"\0" * (2**20 + 1)}, "job_too_large"),
        ({"job": msgpack.packb({"v": 1, "id": "0-bad", "prompt": 5})}, "invalid_parameter"),
        ({"job": msgpack.packb({"v": 2, "id": "0-bad", "prompt": "x"})}, "invalid_parameter"),
        (
            {"job": msgpack.packb({"id": "0-bad", "prompt": "x", "sampling": {"heat": 1}})},
            "invalid_parameter",
        ),
        ({"job": msgpack.packb({"id": "0-bad", "prompt": "x" * 200})}, "prompt_too_long"),
    ],
)
def test_a_job_that_cannot_run_is_a_dead_letter_and_the_worker_goes_on(
    client: Client,
    start_worker: StartWorker,
    raw: redis.Redis,
    partition: Partition,
    fields: dict[str, bytes],
    code: str,
) -> None:
    # given
    start_worker(max_context=100)
    # when
    raw.xadd(partition.jobs(Priority.NORMAL), dict(fields))
    after = client.submit("fine", max_new_tokens=2)
    # then
    assert after.result(20).token_ids == echoed(b"fine", 2)
    ((_, letter),) = raw.xrange(partition.dead)
    assert letter[b"code"].decode() == code
    assert letter[b"message"]
    assert letter[b"job"] == fields.get("job", b"")[: 2**20]
    if b"0-bad" in fields.get("job", b""):
        (event,) = client.job("0-bad").stream(timeout_s=20)
        assert isinstance(event, FailedEvent)
        assert event.code == code
    assert has_no_jobs(raw, partition)


def test_a_token_log_that_cannot_be_read_costs_one_job(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    job = client.submit("x")
    raw.xadd(partition.tokens(job.id), {"event": b"garbage"}, id="1-0")
    raw.hset(partition.state(job.id), "tokens", 1)
    # when
    start_worker()
    # then
    assert client.submit("ab", max_new_tokens=2).result(20).token_ids == echoed(b"ab", 2)
    wait_until(lambda: job.status().status == "failed")
    assert raw.xlen(partition.dead) == 1


def test_what_only_the_worker_can_know_reaches_the_caller_as_its_own_error(
    client: Client, start_worker: StartWorker
) -> None:
    # given: too long for the model, but submit cannot be certain for chat
    start_worker(max_context=50)
    job = client.submit([{"role": "user", "content": "x" * 60}])
    # when / then
    with pytest.raises(PromptTooLong, match="60 tokens"):
        job.result(20)
    with pytest.raises(PromptTooLong, match="context is 50"):
        client.submit("x" * 60)


def test_a_job_that_kills_its_workers_is_given_up(
    broker: EmbeddedBroker, queue: str, client: Client, start_worker: StartWorker
) -> None:
    # given: three workers have taken it and died without a token
    bench = Bench(broker, queue)
    job = client.submit("poison")
    lease = bench.start("dead-1")
    for name in ("dead-2", "dead-3"):
        bench.steal(lease, name)
    # when
    start_worker(max_attempts=3)
    # then
    with pytest.raises(JobFailed, match="3 workers in a row") as caught:
        job.result(20)
    assert caught.value.code == "crash_loop"
    bench.close()


def test_one_poisonous_job_does_not_take_its_batch_mates_with_it(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: all in one batch from the start, with nobody to say which of them kills
    poison = client.submit([POISON])
    mates = client.submit_many([[n, n + 1] for n in range(12)])
    settings = {"program": ["tests.worker.mortal"], "lease_s": 0.5, "ready": False}
    worker = start_worker(**settings)
    deaths = 0
    # when: whoever dies is started again, as a supervisor would
    while poison.status().status != "failed":
        if not worker.running:
            deaths += 1
            worker.start()
        time.sleep(0.05)
    # then
    with pytest.raises(JobFailed, match="3 workers in a row") as caught:
        poison.result(20)
    assert caught.value.code == "crash_loop"
    assert deaths == 3
    for n, mate in enumerate(mates):
        assert mate.result(30).token_ids == tuple((n, n + 1)[i % 2] for i in range(256))
    assert [letter[b"code"] for _, letter in raw.xrange(partition.dead)] == [b"crash_loop"]
    assert has_no_jobs(raw, partition)


# Cancellation and deadlines


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
    events = list(long.stream(timeout_s=20))
    assert isinstance(events[-1], CancelledEvent)
    assert [event.index for event in events] == list(range(len(events)))
    assert waiting.result(20).token_ids == echoed(b"de", 2)
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
    assert isinstance(list(job.stream(timeout_s=20))[-1], CancelledEvent)


@pytest.mark.parametrize("when", ["before it starts", "while it runs"])
def test_a_job_past_its_deadline_ends(client: Client, start_worker: StartWorker, when: str) -> None:
    # given
    if when == "before it starts":
        job = client.submit("x", deadline_s=0.001)
        time.sleep(0.01)
        start_worker()
    else:
        start_worker(**SLOW)
        job = client.submit("x", max_new_tokens=100_000, deadline_s=0.3)
    # when / then
    with pytest.raises(DeadlineExceeded):
        job.result(20)
    tokens = [e for e in job.stream(timeout_s=20) if isinstance(e, TokenEvent)]
    assert bool(tokens) is (when == "while it runs")


# Crashes, drains, zombies


def test_a_killed_workers_jobs_go_on_with_the_next_token(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    victim = start_worker(max_batch_size=8, **SLOW)
    jobs = client.submit_many([f"prompt {n}" for n in range(8)])
    wait_until(lambda: all(running(job, tokens=5) for job in jobs))
    # when
    victim.kill()
    start_worker(max_batch_size=8)
    # then
    for n, job in enumerate(jobs):
        events = list(job.stream(timeout_s=30))
        assert [event.index for event in events] == list(range(257))
        assert job.result(20).token_ids == echoed(f"prompt {n}".encode(), 256)
        assert job.status().epoch == 2
    assert has_no_jobs(raw, partition)


def test_a_worker_that_is_stopped_past_its_lease_publishes_nothing_afterwards(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    zombie = start_worker(lease_s=0.5, **SLOW)
    job = client.submit("abc", max_new_tokens=150)
    wait_until(lambda: running(job, tokens=5))
    # when: it sleeps through its lease, another takes over, it wakes up
    zombie.signal(signal.SIGSTOP)
    other = start_worker(lease_s=0.5, **SLOW)
    wait_until(lambda: job.status().epoch == 2)
    zombie.signal(signal.SIGCONT)
    # then
    events = list(job.stream(timeout_s=30))
    assert [event.index for event in events] == list(range(151))
    assert job.result(20).token_ids == echoed(b"abc", 150)
    assert job.status().worker == other.name
    assert zombie.running


def test_a_long_job_keeps_its_lease(client: Client, start_worker: StartWorker) -> None:
    # given: two workers, and a job that runs for several leases
    start_worker(lease_s=0.5, **SLOW)
    start_worker(lease_s=0.5, **SLOW)
    job = client.submit("abc", max_new_tokens=120)
    # when
    job.result(30)
    # then
    assert job.status().epoch == 1


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
    assert second.result(20).token_ids == echoed(b"cd", 3)


def test_a_drain_hands_back_at_once_what_outlasts_the_grace_period(
    client: Client, start_worker: StartWorker
) -> None:
    # given: a lease so long that only handing back can explain a takeover
    worker = start_worker(lease_s=300, grace_s=0.2, **SLOW)
    job = client.submit("abc", max_new_tokens=200)
    wait_until(lambda: running(job, tokens=5))
    # when
    assert worker.terminate() == 0
    start_worker(lease_s=300)
    # then
    assert [event.index for event in job.stream(timeout_s=30)] == list(range(201))
    assert job.status().attempts == 1


def test_a_drain_under_load_is_no_more_than_a_pause_to_clients(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: two workers with all slots full and more that waits; leases too long to explain it
    settings = {"lease_s": 300, "max_batch_size": 8, **SLOW}
    leaves = start_worker(grace_s=0.5, **settings)
    start_worker(**settings)
    sampling = {"max_new_tokens": 80}
    jobs = client.submit_many([Request(f"{n:02}", sampling=sampling) for n in range(24)])
    wait_until(lambda: leaves.metrics().get("rose_batch_sequences") == 8)
    # when
    assert leaves.terminate() == 0
    # then
    for n, job in enumerate(jobs):
        events = list(job.stream(timeout_s=60))
        assert [event.index for event in events] == list(range(81))
        assert job.result(20).token_ids == echoed(f"{n:02}".encode(), 80)
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


# Redis trouble


@needs_redis_server
def test_a_restart_of_redis_is_a_pause(own_redis: EmbeddedBroker, queue: str) -> None:
    # given
    with (
        Client(redis_url=own_redis.url, queue=queue) as client,
        WorkerProcess(
            "w", own_redis.url, queue=queue, engine="null", min_step_s=0.02, redis_retries=0
        ) as worker,
    ):
        worker.wait_ready()
        with redis.Redis(port=own_redis.port) as admin:
            admin.config_set("appendfsync", "always")
        job = client.submit("abc", max_new_tokens=150)
        wait_until(lambda: running(job, tokens=5))
        # when
        own_redis.stop()
        wait_until(lambda: "waits for Redis" in worker.log)
        assert worker.http("/healthz") == "ok\n"
        own_redis.start()
        # then
        assert [event.index for event in job.stream(timeout_s=30)] == list(range(151))
        assert job.status().epoch == 1
        assert client.submit("de", max_new_tokens=2).result(20).token_ids == echoed(b"de", 2)
        assert worker.running


@needs_redis_server
def test_a_flush_of_redis_does_not_stop_the_worker(own_redis: EmbeddedBroker, queue: str) -> None:
    # given
    with (
        Client(redis_url=own_redis.url, queue=queue) as client,
        WorkerProcess("w", own_redis.url, queue=queue, engine="null", min_step_s=0.02) as worker,
    ):
        worker.wait_ready()
        lost = client.submit("abc", max_new_tokens=100_000)
        wait_until(lambda: running(lost))
        # when: groups and all are gone
        with redis.Redis(port=own_redis.port) as admin:
            admin.flushall()
        # then
        assert client.submit("de", max_new_tokens=2).result(20).token_ids == echoed(b"de", 2)


def test_without_redis_it_ends_with_one_line_after_bounded_retries() -> None:
    # when
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "rose", "worker", "--engine=null", "--redis-retries=1"),
            "--redis-url=redis://:secret@127.0.0.1:1/0",
        ],
        capture_output=True,
        text=True,
        timeout=60,
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
        job.result(20)
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
    job.result(20)
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
        assert len(job.result(20).token_ids) == 256
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
    assert client.job("mine-1").result(20).token_ids == echoed(b"ab", 256)


def test_the_log_lines_are_one_line_each(client: Client, start_worker: StartWorker) -> None:
    worker = start_worker()
    client.submit("x", max_new_tokens=1).result(20)
    assert worker.terminate() == 0
    assert all(line.split()[2] in ("INFO", "WARNING") for line in worker.log.splitlines())
    assert json.dumps(worker.log).count("Traceback") == 0


# What somebody else has written to the keys of a job


def spoil_log_ahead(raw: redis.Redis, partition: Partition, job_id: str) -> None:
    raw.xadd(partition.tokens(job_id), {"event": b"garbage"}, id="999999-0")


def spoil_log_type(raw: redis.Redis, partition: Partition, job_id: str) -> None:
    raw.delete(partition.tokens(job_id))
    raw.set(partition.tokens(job_id), "something else")


def spoil_state(raw: redis.Redis, partition: Partition, job_id: str) -> None:
    raw.delete(partition.state(job_id))
    raw.set(partition.state(job_id), "something else")


@pytest.mark.parametrize("spoil", [spoil_log_ahead, spoil_log_type, spoil_state])
@pytest.mark.parametrize("when", ["while it waits", "while it runs"])
def test_spoilt_keys_cost_the_job_they_belong_to_and_no_other(
    client: Client,
    start_worker: StartWorker,
    raw: redis.Redis,
    partition: Partition,
    spoil: Callable[[redis.Redis, Partition, str], None],
    when: str,
) -> None:
    # given
    if when == "while it runs":
        start_worker(lease_s=0.5, **SLOW)
    spoilt = client.submit("abc", max_new_tokens=100_000)
    mates = client.submit_many(["de"] * 3)
    if when == "while it runs":
        wait_until(lambda: running(spoilt, tokens=3))
    # when
    spoil(raw, partition, spoilt.id)
    if when == "while it waits":
        start_worker(lease_s=0.5)
    # then
    for mate in mates:
        assert mate.result(30).token_ids == echoed(b"de", 256)
    wait_until(lambda: has_no_jobs(raw, partition))
    ((_, letter),) = raw.xrange(partition.dead)
    assert letter[b"code"] == b"malformed_message"
