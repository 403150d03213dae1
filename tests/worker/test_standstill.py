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

import pytest

from rose.errors import ConfigurationError
from rose.termination import OVERDUE
from rose_cli.demo.broker import EmbeddedBroker
from rose_producer import Client
from rose_worker.engine import Engine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings
from tests.support.bench import wait_until

#: A worker whose loop stands still as soon as it serves. What bounds its end is short.
_STANDS_STILL = """
import asyncio, sys, time
from rose import termination
from rose_worker import main, service
from rose_worker.settings import WorkerSettings

service._END_S = service._DRAIN_S = 0.5
beat = service._Service._beat

async def stand_still(self):
    asyncio.get_running_loop().call_later(0.5, lambda: [time.sleep(1) for _ in range(10**6)])
    await beat(self)

service._Service._beat = stand_still
main.run(WorkerSettings(redis_url=sys.argv[1], queue=sys.argv[2], engine="null", grace_s=0,
                        http_port=int(sys.argv[3]), stall_timeout_s=1.0))
"""


@contextmanager
def running(*arguments: str, stderr: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *arguments], stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


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


def test_a_loop_that_stands_still_is_unhealthy_and_a_signal_ends_it(
    broker: EmbeddedBroker, queue: str
) -> None:
    # given
    port = free_port()
    with running("-c", _STANDS_STILL, broker.url, queue, str(port)) as worker:
        # then
        wait_until(lambda: answer(port, "/healthz")[0] == 503)
        for path in ("/healthz", "/readyz"):
            status, text = answer(port, path)
            assert status == 503
            assert "the event loop has stood still" in text
        # when
        worker.send_signal(signal.SIGTERM)
        # then: it cannot drain, and ends all the same
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
