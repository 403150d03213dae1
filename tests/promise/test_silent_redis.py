"""A Redis that says nothing, as behind dropped packets: workers notice, and can be stopped."""

import signal
import time
from collections.abc import Iterator

import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, Job
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import running, serving
from tests.support.proxy import Proxy

pytestmark = needs_redis_server

LEASE_S = 10.0
GRACE_S = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(fake=False) as server:
        yield server


@pytest.fixture
def proxy(server: EmbeddedBroker) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def worker(proxy: Proxy, queue: str) -> Iterator[WorkerProcess]:
    """With the timeouts that workers have by default."""
    given = {"queue": queue, "lease_s": LEASE_S, "grace_s": GRACE_S, "min_step_s": 0.02}
    with serving("w", proxy.url, **given) as worker:
        yield worker


@pytest.fixture
def job(server: EmbeddedBroker, queue: str, worker: WorkerProcess) -> Iterator[Job]:
    """In mid-sentence, and far from its end."""
    with Client(redis_url=server.url, queue=queue) as client:
        job = client.submit("abc", max_new_tokens=100_000)
        wait_until(lambda: running(job, tokens=5))
        yield job


def test_it_is_said_while_it_lasts(proxy: Proxy, worker: WorkerProcess, job: Job) -> None:
    # when
    proxy.silence()
    # then: nobody is told to come to this worker, and the log says why
    wait_until(lambda: worker.http("/readyz") is None)
    wait_until(lambda: "the leases of partition 0 cannot be renewed" in worker.log)
    assert worker.http("/healthz") is not None
    # and: well again
    proxy.speak(lost=True)
    wait_until(worker.is_ready)
    tokens = job.status().tokens
    wait_until(lambda: job.status().tokens > tokens)


def test_a_drain_ends_a_few_seconds_after_the_grace_period(
    proxy: Proxy, worker: WorkerProcess, job: Job
) -> None:
    # given
    proxy.silence()
    # when
    began = time.monotonic()
    status = worker.terminate()
    # then
    assert time.monotonic() - began < GRACE_S + 40
    assert status == 0
    assert "the last tokens did not reach Redis" in worker.log
    assert "partition 0 is not handed back, its leases will lapse" in worker.log


def test_a_second_signal_ends_it_at_once(server: EmbeddedBroker, proxy: Proxy, queue: str) -> None:
    # given
    given = {"queue": queue, "lease_s": LEASE_S, "grace_s": 300, "min_step_s": 0.02}
    with (
        Client(redis_url=server.url, queue=queue) as client,
        serving("w", proxy.url, **given) as worker,
    ):
        job = client.submit("abc", max_new_tokens=100_000)
        wait_until(lambda: running(job, tokens=5))
        proxy.silence()
        worker.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in worker.log)
        # when
        began = time.monotonic()
        assert worker.terminate() == 0
        # then
        assert time.monotonic() - began < 60
