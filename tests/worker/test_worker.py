"""`rose worker` as a process: jobs through it, and what an operator sees."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from rose.protocol import GROUP, Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, Request
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.echo import SLOW, StartWorker, echoed, has_no_jobs, running


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


def test_a_wrong_model_is_refused_before_redis_is_asked(tmp_path: Path) -> None:
    # given
    path = tmp_path / "pickled.bin"
    path.write_bytes(b"PK\x03\x04")
    with socket.create_server(("127.0.0.1", 0)) as redis_to_be:
        url = f"redis://127.0.0.1:{redis_to_be.getsockname()[1]}"
        redis_to_be.setblocking(False)
        for option in ("--model", "--tokenizer"):
            # when
            ended = run_rose("worker", option, str(path), "--redis-url", url)
            # then
            assert ended.returncode == 1
            assert f"{str(path)!r} is no GGUF file" in ended.stderr
            with pytest.raises(BlockingIOError):
                redis_to_be.accept()


def test_a_worker_holds_no_more_jobs_than_it_has_slots(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    endless = Request("x" * 40, sampling={"max_new_tokens": 100_000})
    jobs = client.submit_many([endless] * 8)
    start_worker(max_batch_size=2, **SLOW)

    def held() -> int:
        return sum(raw.xpending(stream, GROUP)["pending"] for stream in partition.all_jobs)

    # when / then: each that ends makes room for another
    for job in jobs[:-2]:
        wait_until(lambda: held() == 2)
        assert max(held() for _ in range(20)) == 2
        wait_until(lambda job=job: running(job))
        assert job.cancel()
        wait_until(lambda job=job: job.status().status == "cancelled")


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


def test_the_pages_of_a_worker(start_worker: StartWorker) -> None:
    worker = start_worker()
    assert worker.http("/healthz") == "ok\n"
    assert worker.http("/readyz") == "ok\n"
    assert worker.http("/nothing") is None
    assert worker.metrics()["rose_batch_capacity_sequences"] == 32


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


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_at_once_while_it_loads_its_model(
    broker: EmbeddedBroker, tmp_path: Path, signum: signal.Signals
) -> None:
    # given: a model that takes an hour
    began = tmp_path / "began"
    program = (
        "import asyncio, pathlib, sys, time\n"
        "from rose_worker.service import Worker\n"
        "from rose_worker.settings import WorkerSettings\n"
        "def load(): pathlib.Path(sys.argv[1]).touch(); time.sleep(3600)\n"
        "asyncio.run(Worker(WorkerSettings(redis_url=sys.argv[2]), load).run())\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", program, began, broker.url])
    try:
        wait_until(began.exists)
        # when
        os.kill(worker.pid, signum)
        # then
        assert worker.wait(120) == 128 + signum
    finally:
        worker.kill()
        worker.wait()
