"""Redis in trouble while a worker decodes and subscribers listen: all see is a pause.

One redis-server and one worker serve the whole file: the worker is told of a proxy, through which
it meets most of the trouble, and no trouble may end it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from rose.errors import BrokerUnavailable, JobNotFound
from rose.protocol import GROUP, Partition
from rose_cli.demo.broker import EmbeddedBroker
from rose_cli.demo.workers import WorkerProcess
from rose_producer import CancelledEvent, Client, Job, ProducerSettings, Request
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import has_no_jobs, serving
from tests.support.listeners import Listeners, assert_echo, assert_echo_until
from tests.support.proxy import Proxy
from tests.support.troubles import (
    busy,
    loading,
    read_only,
    unable_to_save,
    without_replicas,
)

pytestmark = needs_redis_server

QUEUE = "trouble"
PROMPT = "the quick brown fox"
STEP_S = 0.01
ENDLESS = {"max_new_tokens": 100_000}
#: Impatient, so that calls are repeated during a trouble and not only after it.
IMPATIENT = {"redis_timeout_s": 1, "redis_retries": 1}
#: To the workers, in slow motion.
GIVEN: dict[str, str | float] = {"queue": QUEUE, "min_step_s": STEP_S, **IMPATIENT}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    options = {"appendfsync": "always", "enable-debug-command": "local"}
    with EmbeddedBroker(fake=False, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: EmbeddedBroker) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared_worker(proxy: Proxy) -> Iterator[WorkerProcess]:
    with serving("shared", proxy.url, **GIVEN) as worker:
        yield worker


@pytest.fixture
def worker(
    shared_worker: WorkerProcess, proxy: Proxy, server: EmbeddedBroker, admin: redis.Redis
) -> Iterator[WorkerProcess]:
    """Alive before and after, and well again: it has nothing in hand."""
    yield shared_worker
    proxy.heal()
    assert shared_worker.running, shared_worker.log[-2000:]


@pytest.fixture
def admin(server: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, protocol=2) as admin:
        yield admin


@pytest.fixture
def partition() -> Partition:
    return Partition(QUEUE)


def settings(url: str) -> ProducerSettings:
    return ProducerSettings(redis_url=url, queue=QUEUE, poll_interval_s=0.5, **IMPATIENT)


@pytest.fixture
def client(server: EmbeddedBroker) -> Iterator[Client]:
    with Client(settings(server.url)) as client:
        yield client


class Stream:
    """A job in mid-sentence, and its subscribers."""

    def __init__(self, client: Client, url: str, tokens: int) -> None:
        self.tokens = tokens
        self.job = client.submit(PROMPT, max_new_tokens=tokens)
        self.listeners = Listeners(settings(url), self.job.id)
        wait_until(lambda: self.listeners.have(10))

    def assert_complete(self) -> None:
        assert_echo(self.listeners.events(), PROMPT, self.tokens)

    def assert_goes_on(self) -> None:
        """And lacks nothing, until it is cancelled."""
        most = max(map(len, self.listeners.seen))
        wait_until(lambda: self.listeners.have(most + 20))
        assert self.job.cancel()
        events = self.listeners.events()
        assert_echo_until(events, PROMPT, CancelledEvent)
        assert len(events) > most + 20


@pytest.fixture
def stream(client: Client, server: EmbeddedBroker, worker: WorkerProcess) -> Callable[..., Stream]:
    """Begins a job of about two seconds, or of `tokens`, with subscribers behind `url`."""
    return lambda tokens=200, url=server.url: Stream(client, url, tokens)


@pytest.fixture
def endless(stream: Callable[..., Stream]) -> Callable[..., Stream]:
    """Begins a job that is in mid-sentence until it is cancelled, however long a trouble takes."""
    return partial(stream, 100_000)


# Connections


@pytest.mark.parametrize("side", ["subscriber", "worker"])
def test_a_connection_cut_in_the_middle_of_a_reply(
    server: EmbeddedBroker,
    proxy: Proxy,
    stream: Callable[..., Stream],
    endless: Callable[..., Stream],
    side: str,
) -> None:
    # given: cuts in the greeting, in the confirmation of a subscription, in the log, in replies
    cuts = [*range(1, 400, 29), *range(400, 6000, 530)]
    if side == "subscriber":
        with Proxy(server.port, cuts) as bad:
            # when
            stream(220, bad.url).assert_complete()
            # then
            assert bad.cuts > 8
        return
    # when
    running = endless()
    before = proxy.cuts
    proxy.cut_after = iter(cuts)
    proxy.cut_now()
    wait_until(lambda: proxy.cuts - before > 8)
    # then
    running.assert_goes_on()


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
def test_clients_that_redis_hangs_up_on_again_and_again(
    admin: redis.Redis, stream: Callable[..., Stream], kind: str
) -> None:
    # given
    running = stream(220)
    # when
    killed = 0
    deadline = time.monotonic() + 90
    while killed <= 10 and time.monotonic() < deadline:
        killed += admin.client_kill_filter(_type=kind, skipme=True)
        time.sleep(0.2)
    # then
    assert killed > 10
    running.assert_complete()


def test_a_submit_whose_reply_was_lost_is_not_enqueued_twice(
    server: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given
    own = Partition("lost-replies")
    with Proxy(server.port) as bad, Client(redis_url=bad.url, queue=own.queue) as client:
        first = client.submit("x")
        # when
        bad.swallow = b"EVALSHA"
        second = client.submit("y")
        bad.swallow = b"EVALSHA"
        others = client.submit_many(["z"] * 3)
        # then
        assert bad.cuts == 2
    assert sum(admin.xlen(stream) for stream in own.all_jobs) == 5
    assert len({first.id, second.id, *(job.id for job in others)}) == 5


# Slowness


def test_a_slow_network_costs_no_token(proxy: Proxy, stream: Callable[..., Stream]) -> None:
    # given: every reply takes longer than a third of the lease, when the next renewal is due
    running = stream()
    proxy.delay_s = 0.5
    # when / then
    running.assert_complete()


@pytest.mark.parametrize("how", ["CLIENT PAUSE", "DEBUG SLEEP"])
def test_a_redis_that_says_nothing_for_two_leases(
    server: EmbeddedBroker, admin: redis.Redis, stream: Callable[..., Stream], how: str
) -> None:
    # given: another worker, to which the job may move
    running = stream()
    with serving("other", server.url, **GIVEN):
        # when
        if how == "CLIENT PAUSE":
            admin.client_pause(2000)
            time.sleep(2)
        else:
            admin.execute_command("DEBUG", "SLEEP", "2")
        # then
        running.assert_complete()


# Data that is gone


def test_after_a_flush_new_jobs_run_and_old_subscribers_are_told(
    admin: redis.Redis, client: Client, stream: Callable[..., Stream]
) -> None:
    # given
    running = stream(100_000)
    # when
    admin.flushall()
    # then
    running.listeners.join()
    assert [type(error) for error in running.listeners.errors] == [JobNotFound, JobNotFound]
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == (97, 98)


def test_subscribers_are_told_that_somebody_has_deleted_the_state_of_a_job(
    admin: redis.Redis, client: Client, partition: Partition, stream: Callable[..., Stream]
) -> None:
    # given
    running = stream(100_000)
    # when
    admin.delete(partition.state(running.job.id))
    # then
    running.listeners.join()
    assert [type(error) for error in running.listeners.errors] == [JobNotFound, JobNotFound]
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == (97, 98)


def test_tokens_that_a_failover_has_forgotten_are_written_again(
    admin: redis.Redis, partition: Partition, stream: Callable[..., Stream]
) -> None:
    # given: what the heir of a primary knows of a job, and tokens that came after it
    running = stream()
    keys = [partition.state(running.job.id), partition.tokens(running.job.id)]
    known = [admin.dump(key) for key in keys]
    delivered = max(map(len, running.listeners.seen))
    wait_until(lambda: running.listeners.have(delivered + 10))
    # when
    with admin.pipeline(transaction=True) as heir:
        for key, value in zip(keys, known, strict=True):
            heir.restore(key, 0, value, replace=True)
        heir.execute()
    # then
    running.assert_complete()


def test_jobs_complete_after_their_group_was_destroyed(
    admin: redis.Redis, client: Client, partition: Partition, stream: Callable[..., Stream]
) -> None:
    # given: a job that runs, and some that wait for a slot
    running = stream()
    jobs = [Request("wait", sampling={"max_new_tokens": 50}) for _ in range(40)]
    waiting = client.submit_many(jobs)
    # when
    for key in partition.all_jobs:
        admin.xgroup_destroy(key, GROUP)
    # then
    running.assert_complete()
    for job in waiting:
        assert_echo(list(job.stream(timeout_s=90)), "wait", 50)
    wait_until(lambda: has_no_jobs(admin, partition))


def test_scripts_that_are_flushed_again_and_again(
    admin: redis.Redis, client: Client, stream: Callable[..., Stream]
) -> None:
    # given
    running = stream()
    # when
    jobs: list[Job] = []
    two = Request("ab", sampling={"max_new_tokens": 2})
    for _ in range(10):
        admin.script_flush()
        jobs.append(client.submit("ab", max_new_tokens=2))
        admin.script_flush()
        jobs += client.submit_many([two, two])
        admin.script_flush()
        time.sleep(0.05)
    # then
    running.assert_complete()
    assert {job.result(90).token_ids for job in jobs} == {(97, 98)}


# A Redis that refuses


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("LOADING", "loading"),
        ("READONLY", "read only replica"),
        ("MASTERDOWN", "MASTER is down"),
        ("MISCONF", "MISCONF"),
        ("NOREPLICAS", "NOREPLICAS"),
        ("BUSY", "BUSY"),
    ],
)
def test_a_redis_that_is_up_and_refuses(
    server: EmbeddedBroker,
    proxy: Proxy,
    admin: redis.Redis,
    client: Client,
    endless: Callable[..., Stream],
    how: str,
    says: str,
) -> None:
    # given: subscribers behind a proxy of their own
    with (
        Proxy(server.port) as other,
        Client(settings(other.url)) as producer,
    ):
        running = endless(other.url)
        # when
        trouble = {
            "LOADING": loading(proxy, other),
            "READONLY": read_only(admin),
            "MASTERDOWN": read_only(admin, serves_reads=False),
            "MISCONF": unable_to_save(admin),
            "NOREPLICAS": without_replicas(admin),
            "BUSY": busy(admin),
        }
        with trouble[how]:
            with pytest.raises(BrokerUnavailable, match=says):
                producer.submit("x")
            # longer than the pause that a look for silent workers takes for a trouble of Redis
            time.sleep(2.5)
        # then: the worker has kept its job
        running.assert_goes_on()
        assert running.job.status().epoch == 1
        assert client.submit("ab", max_new_tokens=2).result(90).token_ids == (97, 98)


def test_a_worker_that_may_not_publish_is_slow_and_loses_nothing(
    server: EmbeddedBroker, admin: redis.Redis, queue: str
) -> None:
    # given: what its engine says in a pause comes together, so the last tokens with the end
    admin.execute_command("ACL", "SETUSER", "mute", "on", ">mute", "~*", "&*", "+@all", "-publish")
    url = server.url.replace("redis://", "redis://mute:mute@")
    given = settings(server.url).model_copy(update={"queue": queue})
    with (
        Client(given) as client,
        serving("mute", url, queue=queue, **IMPATIENT) as worker,
    ):
        # when
        jobs = [client.submit(PROMPT, max_new_tokens=tokens) for tokens in (1, 20)]
        listening = [Listeners(given, job.id) for job in jobs]
        # then
        assert_echo(listening[0].events(), PROMPT, 1)
        assert_echo(listening[1].events(), PROMPT, 20)
        assert [job.status().epoch for job in jobs] == [1, 1]
        assert "publishing waits for Redis" in worker.log
        wait_until(lambda: has_no_jobs(admin, Partition(queue)))


# Memory


def test_a_worker_that_cannot_publish_does_not_grow(server: EmbeddedBroker, queue: str) -> None:
    # given: a full batch at full speed
    own = Partition(queue)
    full_speed = {**IMPATIENT, "queue": queue, "max_buffered_steps": 50, "lease_s": 30}
    with (
        Proxy(server.port) as bad,
        Client(redis_url=server.url, queue=queue) as client,
        serving("mute", bad.url, **full_speed) as worker,
    ):
        short = client.submit(PROMPT, max_new_tokens=1000)
        endless = client.submit_many(Request(PROMPT, sampling=ENDLESS) for _ in range(31))
        wait_until(lambda: short.status().tokens > 20)
        # when
        with loading(bad):
            wait_until(lambda: grown_mib(worker, 0.5) < 0.1)
            grown = grown_mib(worker, 1.5)
        # then
        assert grown < 1
        assert_echo(list(short.stream(timeout_s=90)), PROMPT, 1000)
        assert all(job.cancel() for job in endless)
        with redis.Redis(port=server.port) as admin:
            wait_until(lambda: has_no_jobs(admin, own))


def grown_mib(worker: WorkerProcess, over_s: float) -> float:
    """Growth of the process's resident memory."""

    def resident_kib() -> int:
        status = Path(f"/proc/{worker.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    before = resident_kib()
    time.sleep(over_s)
    return (resident_kib() - before) / 1024
