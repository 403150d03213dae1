"""A worker of which a part stands still says so, and ends when it is told to."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rose.errors import ConfigurationError
from rose.watchdog import OVERDUE
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from rose_worker.engine import Engine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings
from tests.support.bench import wait_until

#: A worker whose loop does something as soon as it serves. What bounds its end is short.
_WORKER = """
import asyncio, ctypes, sys, threading, time
from rose_worker import main, service
from rose_worker.settings import WorkerSettings

main.END_S = main.DRAIN_S = 0.5
beat = service._Service._beat

def do():
    exec(sys.argv[4])

async def do_and_beat(self):
    asyncio.get_running_loop().call_later(0.5, do)
    await beat(self)

service._Service._beat = do_and_beat
main.run(WorkerSettings(redis_url=sys.argv[1], queue=sys.argv[2], engine="null", grace_s=0,
                        http_port=int(sys.argv[3]), stall_timeout_s=float(sys.argv[5]),
                        lease_s=1.0))
"""
_STANDS_STILL = "while True: time.sleep(1)"
#: It waits for a lock that it has, with the interpreter's lock, and resumes after signals.
_STANDS_STILL_IN_C = """
c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
print("stands", flush=True)
c.pthread_mutex_lock(lock), c.pthread_mutex_lock(lock)
"""
#: Threads end before they have begun, as they do where there is no memory.
_STARTS_NO_THREADS = """
import _thread
_thread.start_new_thread = threading._start_new_thread = lambda *_: 1
print("starts none", flush=True)
"""


@contextmanager
def running(*arguments: str, stderr: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
    return port


def answer(port: int, path: str) -> tuple[int, str]:
    """(0, "") where nobody answers yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.parametrize(("stall_timeout_s", "health"), [(1.0, 503), (10_000.0, 200)])
def test_a_loop_that_stands_still_says_so_and_a_signal_ends_it(
    broker: EmbeddedBroker, queue: str, stall_timeout_s: float, health: int
) -> None:
    # given
    port = free_port()
    arguments = (broker.url, queue, str(port), _STANDS_STILL, str(stall_timeout_s))
    with running("-c", _WORKER, *arguments) as worker:
        # then: it is not ready after its lease, and not healthy after the stall timeout
        wait_until(lambda: "the event loop has stood still" in answer(port, "/readyz")[1])
        wait_until(lambda: answer(port, "/healthz")[0] == health)
        assert answer(port, "/readyz")[0] == 503
        # when
        worker.send_signal(signal.SIGTERM)
        # then: it cannot drain, and ends all the same
        assert worker.wait(90) == OVERDUE


def test_a_signal_ends_a_worker_that_hangs_in_c_with_the_interpreters_lock(
    broker: EmbeddedBroker, queue: str, tmp_path: Path
) -> None:
    # given
    log = tmp_path / "log"
    arguments = (broker.url, queue, "0", _STANDS_STILL_IN_C, "60")
    with (
        log.open("wb") as stderr,
        running("-c", _WORKER, *arguments, stderr=stderr.fileno()) as worker,
    ):
        assert worker.stdout.readline() == b"stands\n"
        # when
        worker.send_signal(signal.SIGTERM)
        # then
        assert worker.wait(90) == -signal.SIGKILL
    # and: where it was
    assert "did not end in time after a signal" in log.read_text()
    assert " in do" in log.read_text()


def test_a_worker_that_can_start_no_threads_goes_on(broker: EmbeddedBroker, queue: str) -> None:
    # given
    arguments = (broker.url, queue, "0", _STARTS_NO_THREADS, "60")
    with running("-c", _WORKER, *arguments) as worker:
        assert worker.stdout.readline() == b"starts none\n"
        with Client(redis_url=broker.url, queue=queue) as client:
            # when: a job whose session is made in a thread, and one beside it
            long = client.submit([1] * 5000, max_new_tokens=2)
            short = client.submit([1], max_new_tokens=2)
            # then
            assert len(long.result(90).token_ids) == len(short.result(90).token_ids) == 2
        # and: Python shuts its pool down in another thread, so the watchdog ends it
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(90) == OVERDUE


def test_a_log_that_nobody_reads_stops_no_job(broker: EmbeddedBroker, queue: str) -> None:
    # given: a pipe that holds a page, and a worker that logs much
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    options = ["--engine", "null", "--http-port", "0", "--log-level", "debug"]
    places = ["--redis-url", broker.url, "--queue", queue]
    try:
        with running("-m", "rose_cli", "worker", *options, *places, stderr=writing) as worker:
            # when
            with Client(redis_url=broker.url, queue=queue) as client:
                jobs = [client.submit([1], max_new_tokens=2) for _ in range(100)]
                results = [job.result(90) for job in jobs]
            # then
            assert all(len(result.token_ids) == 2 for result in results)
            # and: it drains, though its last lines reach nobody
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(90) == 0
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_port_that_is_taken_is_told_before_the_model_loads(
    broker: EmbeddedBroker, queue: str
) -> None:
    # given
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        settings = WorkerSettings(redis_url=broker.url, queue=queue, engine="null", http_port=port)

        def load() -> Engine:
            raise AssertionError("it began to load the model")

        handler = signal.getsignal(signal.SIGTERM)
        # then
        with pytest.raises(ConfigurationError, match="ROSE_HTTP_PORT"):
            await Worker(settings, load).run()
        # and: whoever ran it handles signals as before
        assert signal.getsignal(signal.SIGTERM) is handler
