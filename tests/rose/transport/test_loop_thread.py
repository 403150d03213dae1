"""A loop on a thread of its own, for callers that block: signals, forks, finalizers, the end."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import hiredis
import pytest

from rose.errors import BrokerUnavailable, WrongEventLoop
from rose.settings import QueueSettings
from rose.transport import CONNECTION_LOST, RedisClient
from rose.transport.pipeline import pack
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, Job, TokenEvent
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, wait_until
from tests.support.proxy import Proxy

TOKENS = 300


class Interrupted(BaseException):
    """A signal handler raises it."""


@contextmanager
def interrupted_after(delay_s: float) -> Iterator[None]:
    """The main thread, once."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def proxy(own_redis: EmbeddedBroker) -> Iterator[Proxy]:
    with Proxy(own_redis.port) as proxy:
        yield proxy


def settings(url: str, timeout_s: float = 5) -> QueueSettings:
    return QueueSettings(redis_url=url, redis_timeout_s=timeout_s)  # type: ignore[arg-type]


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a forked child that does this."""
    pid = os.fork()
    if not pid:
        signal.alarm(60)  # a deadlock ends, too
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def filled(bench: Bench) -> Job:
    """A job with its whole answer."""
    job, lease = bench.begin()
    bench.append(lease, *(TokenEvent(index=i, token_ids=(i,), text="x") for i in range(TOKENS)))
    bench.finish(lease, TOKENS)
    return job


def indices(events: Any) -> list[int]:
    return [event.index for event in events]


@needs_redis_server
def test_any_number_of_threads_share_a_few_connections(proxy: Proxy) -> None:
    client = RedisClient(settings(proxy.url))
    # when
    with ThreadPoolExecutor(100) as threads:
        served = list(threads.map(lambda _: client.execute("INCR", "n"), range(1000)))
    # then
    assert sorted(served) == list(range(1, 1001))
    assert proxy.peak <= 16
    client.close()
    wait_until(lambda: proxy.open == 0)


@needs_redis_server
def test_silence_fails_all_threads_at_once_and_not_one_after_the_other(proxy: Proxy) -> None:
    client = RedisClient(settings(proxy.url, timeout_s=2), repeats=0)
    client.execute("PING")
    proxy.silence()

    def ask(_: int) -> object:
        try:
            return client.execute("PING")
        except CONNECTION_LOST as error:
            return error

    # when: 80 wait behind 16
    began = time.monotonic()
    with ThreadPoolExecutor(96) as threads:
        outcomes = list(threads.map(ask, range(96)))
    # then: one after the other would be 12 s
    assert time.monotonic() - began < 10
    assert all(isinstance(outcome, CONNECTION_LOST) for outcome in outcomes)
    proxy.speak(lost=True)
    client.close()


@needs_redis_server
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_thread_begins_with_the_first_call_and_ends_with_the_client(
    own_redis: EmbeddedBroker, *, is_closed: bool
) -> None:
    # given
    before = threading.active_count()
    client = RedisClient(settings(own_redis.url))
    assert threading.active_count() == before
    client.execute("PING")
    assert threading.active_count() > before
    # when
    if is_closed:
        client.close()
    else:
        del client
        gc.collect()
    # then
    wait_until(lambda: threading.active_count() <= before)


def test_an_exception_of_a_signal_handler_loses_and_repeats_no_event(bench: Bench) -> None:
    # given
    job, seen, interruptions = filled(bench), list[int](), 0
    for attempt in range(30):
        stream, seen = job.stream(timeout_s=90), []
        delays = (0.0002 * (1 + (attempt + n) % 13) for n in count())
        while len(seen) <= TOKENS:
            # when
            try:
                with interrupted_after(next(delays)):
                    for event in stream:
                        seen.append(event.index)
            except Interrupted:
                interruptions += 1
        # then
        assert seen == list(range(TOKENS + 1))
    assert interruptions
    assert job.status().status == "finished"


def test_an_interrupted_call_is_cancelled_and_the_next_one_gets_its_own_reply(
    bench: Bench, proxy: Proxy, own_redis: EmbeddedBroker
) -> None:
    client = RedisClient(settings(proxy.url, timeout_s=60))
    client.execute("SET", "a", "1")
    # when: it waits for a reply that does not come
    proxy.silence()
    with pytest.raises(Interrupted), interrupted_after(0.1):
        client.execute("GET", "a")
    proxy.speak()
    # then
    assert client.execute("ECHO", "mine") == b"mine"
    client.close()


def test_hiredis_packs_no_number_because_a_raising_signal_handler_would_end_the_process() -> None:
    words = ("EVALSHA", b"\x00\xff", 7, -1, 2**70, "漢")

    assert pack(words) == hiredis.pack_command(tuple(words))
    raising = """
import random, signal
from rose.transport.pipeline import pack
class Hit(BaseException): pass
def on(*_): raise Hit
signal.signal(signal.SIGALRM, on)
words = ("EVALSHA", 7, *range(1000))
for _ in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.random() * 3e-4)
        for _ in range(30): pack(words)
    except Hit: pass
    finally: signal.setitimer(signal.ITIMER_REAL, 0)
"""
    assert subprocess.run([sys.executable, "-c", raising], check=False).returncode == 0


def test_a_forked_child_uses_the_client_and_leaves_its_parents_connections_alone(
    bench: Bench,
) -> None:
    # given: a stream of the parent that waits for events
    job, lease = bench.begin()
    bench.append(lease, *(TokenEvent(index=i, token_ids=(i,), text="x") for i in range(3)))
    stream = job.stream(timeout_s=90)
    seen = [next(stream).index for _ in range(3)]
    channel = bench.partition.channel(job.id)
    wait_until(lambda: bench.redis.pubsub_numsub(channel)[0][1] == 1)

    def use() -> None:
        assert bench.client.job(job.id).status().tokens == 3
        assert next(bench.client.job(job.id).stream()).index == 0
        stream.close()
        gc.collect()

    # when
    assert in_child(use) == 0
    # then: it is subscribed still, and hears it at once
    assert bench.redis.pubsub_numsub(channel)[0][1] >= 1
    bench.finish(lease, 3)
    assert seen + indices(stream) == [0, 1, 2, 3]


def test_a_stream_goes_on_in_a_forked_child_from_where_it_was(bench: Bench) -> None:
    job = filled(bench)
    stream = job.stream(timeout_s=90)
    seen = [next(stream).index for _ in range(7)]

    def goes_on() -> None:
        assert seen + indices(stream) == list(range(TOKENS + 1))

    # when / then
    assert in_child(goes_on) == 0
    goes_on()


def test_forks_while_threads_use_the_client(bench: Bench) -> None:
    # given
    job, stop = filled(bench), threading.Event()

    def busy() -> int:
        rounds = 0
        while not stop.is_set():
            assert len(list(job.stream())) == TOKENS + 1
            rounds += 1
        return rounds

    with ThreadPoolExecutor(6) as threads:
        working = [threads.submit(busy) for _ in range(6)]
        # when
        try:
            codes = [in_child(lambda: bool(job.status()) or None) for _ in range(20)]
        finally:
            stop.set()
        # then
        assert codes == [0] * 20
        assert all(work.result(90) for work in working)


def test_streams_that_are_left_to_the_garbage_collector(bench: Bench) -> None:
    # given: it runs at nearly each allocation, also within the client
    job, before = filled(bench), gc.get_threshold()

    def abandon(_: int) -> None:
        for _ in range(40):
            stream = job.stream()
            next(stream)
            cycle: list[Any] = [stream]
            cycle.append(cycle)

    gc.set_threshold(1)
    # when
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(abandon, range(4), timeout=90))
    finally:
        gc.set_threshold(*before)
    # then
    gc.collect()
    wait_until(lambda: not bench.redis.pubsub_numsub(bench.partition.channel(job.id))[0][1])


def test_a_call_on_the_clients_own_thread_is_refused(bench: Bench) -> None:
    async def call(_: object) -> object:
        return bench.client.queue_status()

    with pytest.raises(WrongEventLoop, match="would wait for itself"):
        bench.client._thread.call(call)


async def test_a_blocking_client_works_where_an_event_loop_runs(bench: Bench) -> None:
    assert bench.client.queue_status().waiting["normal"] == 0
    assert asyncio.get_running_loop().is_running()


def test_requests_may_come_from_a_generator_that_uses_the_client(bench: Bench) -> None:
    job = filled(bench)

    submitted = bench.client.submit_many(f"x{event.index}" for event in job.stream())

    assert len(submitted) == TOKENS + 1


def test_closing_ends_a_stream_that_another_thread_reads(
    bench: Bench, broker: EmbeddedBroker
) -> None:
    client = Client(bench.client.settings)
    job, _ = bench.begin()
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(lambda: list(client.job(job.id).stream()))
        wait_until(lambda: bench.redis.pubsub_numsub(bench.partition.channel(job.id))[0][1])
        # when
        client.close()
        # then
        with pytest.raises(BrokerUnavailable, match="closed"):
            reading.result(90)


@pytest.mark.parametrize(
    "ends",
    [
        "",
        "threading.Thread(target=job.result, daemon=True).start(); time.sleep(0.2)",
        "client.close()",
    ],
)
def test_a_process_ends_without_a_word_whether_the_client_is_closed_or_not(
    bench: Bench, ends: str
) -> None:
    program = f"""
import sys, threading, time
from rose_producer import Client
client = Client(redis_url=sys.argv[1], queue=sys.argv[2])
job = client.submit("x")
stream = client.job(job.id).bursts()
threading.Thread(target=lambda: next(stream, None), daemon=True).start()
time.sleep(0.1)
{ends}
"""
    url = bench.client.settings.redis_url.get_secret_value()
    command = [sys.executable, "-W", "default", "-c", program, url, bench.client.settings.queue]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0
    if "close" not in ends:  # there the thread hears of it
        assert ran.stderr == ""
