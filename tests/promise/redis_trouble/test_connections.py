"""Connections that are cut, slow or silent cost a pause."""

import time
from collections.abc import Callable

import pytest
import redis

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import serving
from tests.support.mid_sentence import WORKER_SETTINGS, Stream
from tests.support.proxy import Proxy
from tests.support.time_limit import TimeLimit

pytestmark = needs_redis_server


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
    limit = TimeLimit(90)
    while killed <= 10 and not limit.passed:
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
    with serving("other", server.url, **WORKER_SETTINGS):
        # when
        if how == "CLIENT PAUSE":
            admin.client_pause(2000)
            time.sleep(2)
        else:
            admin.execute_command("DEBUG", "SLEEP", "2")
        # then
        running.assert_complete()
