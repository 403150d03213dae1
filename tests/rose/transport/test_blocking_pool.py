"""The threads of a blocking client: bounded, in turn, and no connection is left idle for long."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from rose.settings import QueueSettings
from rose.transport import CONNECTION_LOST, RedisClient, Subscriptions, blocking_pool
from rose.transport.blocking_pool import Turns
from rose_cli.demo.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.proxy import Proxy

pytestmark = needs_redis_server


@pytest.fixture
def proxy(own_redis: EmbeddedBroker) -> Iterator[Proxy]:
    with Proxy(own_redis.port) as proxy:
        yield proxy


def settings(url: str, timeout_s: float = 5) -> QueueSettings:
    return QueueSettings(redis_url=url, redis_timeout_s=timeout_s)  # type: ignore[arg-type]


def test_threads_get_their_turns_in_the_order_in_which_they_came() -> None:
    # given: the only turn is taken
    turns, served = Turns(1), list[int]()

    def work(number: int) -> None:
        with turns:
            served.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    with turns:
        for waiting, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda: len(turns._waiting) == waiting)  # noqa: B023 - called at once
    # when: it is given back
    for thread in threads:
        thread.join(90)
    # then
    assert served == list(range(20))


def test_a_thread_that_is_interrupted_while_it_waits_loses_no_turn() -> None:
    # given
    turns = Turns(1)
    with (
        turns,
        mock.patch("threading.Event.wait", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
        turns,
    ):
        pass
    # then
    with turns:
        assert not turns._waiting


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


def test_idle_connections_are_closed_and_opened_again(proxy: Proxy) -> None:
    with mock.patch.object(blocking_pool, "IDLE_S", 0.3):
        client, subscriptions = RedisClient(settings(proxy.url)), Subscriptions(settings(proxy.url))
        for _ in range(2):
            # given
            with subscriptions.listen("channel"):
                client.execute("PING")
            # when / then
            wait_until(lambda: proxy.open == 0)
        assert proxy.peak == 2
        client.close()
        subscriptions.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_client_that_is_not_used_any_more_leaves_no_thread(
    proxy: Proxy, *, is_closed: bool
) -> None:
    # given
    before = threading.active_count()
    client, subscriptions = RedisClient(settings(proxy.url)), Subscriptions(settings(proxy.url))
    with subscriptions.listen("channel"):
        client.execute("PING")
    assert threading.active_count() > before
    # when
    if is_closed:
        client.close()
        subscriptions.close()
    else:
        del client, subscriptions
        gc.collect()
    # then: at once, and not when a connection would have been idle for long
    with mock.patch.object(blocking_pool, "IDLE_S", 1e6):
        wait_until(lambda: threading.active_count() <= before)


def test_a_connection_that_died_while_it_was_idle_is_replaced(proxy: Proxy) -> None:
    client = RedisClient(settings(proxy.url), repeats=0)
    for _ in range(2):
        assert client.execute("PING") == b"PONG"
        # when
        proxy.cut_now()
        wait_until(lambda: proxy.open == 0)
    # then
    assert client.execute("PING") == b"PONG"
    client.close()


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
