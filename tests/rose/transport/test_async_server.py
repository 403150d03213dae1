"""A few connections for any number of round trips: bounded, fair, closed when nobody uses them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from unittest import mock

import pytest
import redis
import redis.asyncio

from rose.errors import BrokerUnavailable
from rose.transport import CONNECTION_LOST, async_server
from rose.transport.async_server import AsyncServer, ConnectionLimit
from rose.transport.redis_internals import async_connector
from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.bench import until
from tests.support.proxy import Cut, Proxy
from tests.support.troubles import read_only

pytestmark = needs_redis_server


@asynccontextmanager
async def serving(
    port: int, *, most: int = 16, timeout_s: float = 5, blocking: bool = False
) -> AsyncIterator[AsyncServer]:
    client = redis.asyncio.Redis(port=port, protocol=2)
    connector = async_connector(client.connection_pool)
    server = AsyncServer(connector, timeout_s, ConnectionLimit(most), blocking=blocking)
    yield server
    await server.aclose()


def connections(admin: redis.Redis) -> int:
    """But for the one that asks."""
    return len(admin.client_list()) - 1


async def ask(server: AsyncServer, *command: str | int) -> object:
    (reply,) = await server.exchange([command])
    return reply


async def test_any_number_of_callers_share_a_few_connections(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    async with serving(own_redis.port) as server:
        # when
        trips = [server.exchange([("ECHO", n), ("ECHO", -n)]) for n in range(3000)]
        replies = await asyncio.gather(*trips)
        # then: each has its own replies
        assert replies == [[str(n).encode(), str(-n).encode()] for n in range(3000)]
        assert 1 < connections(admin) <= 16
    await until(lambda: connections(admin) == 0)


async def test_who_waits_is_served_in_order_and_who_gives_up_costs_nobody_a_turn(
    own_redis: EmbeddedBroker,
) -> None:
    with mock.patch.object(async_server, "_MAX_IN_FLIGHT", 2):
        async with serving(own_redis.port, most=1) as server:
            # given
            callers = [asyncio.create_task(ask(server, "INCR", "n")) for _ in range(100)]
            await asyncio.sleep(0)
            # when: before any reply; the connection is not even open
            for caller in callers[::2]:
                caller.cancel()
            served = await asyncio.gather(*callers[1::2])
            # then
            assert served == list(range(1, 51))
            # and when: in flight
            callers = [asyncio.create_task(ask(server, "INCR", "n")) for _ in range(100)]
            await until(lambda: callers[10].done())
            for caller in callers[11::2]:
                caller.cancel()
            later = await asyncio.gather(*callers[::2])
            # then
            assert later == sorted(later)
            assert await ask(server, "ECHO", "still in step") == b"still in step"


async def test_idle_connections_are_closed_and_opened_again(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    async with serving(own_redis.port, timeout_s=1) as server:
        # given
        for _ in range(2):
            await asyncio.gather(*(ask(server, "PING") for _ in range(100)))
        assert connections(admin) > 1
        with mock.patch.object(async_server, "IDLE_S", 0.3):
            # when one caller goes on: the one that it needs is kept
            while connections(admin) > 1:
                await ask(server, "PING")
            (kept,) = [one["id"] for one in admin.client_list() if one["cmd"] == "ping"]
            await ask(server, "PING")
            assert kept in {one["id"] for one in admin.client_list()}
            # and when nobody does
            await until(lambda: connections(admin) == 0)
            # then
            assert await ask(server, "PING") == b"PONG"


async def test_silence_fails_all_at_once_and_nobody_after_the_other(
    own_redis: EmbeddedBroker,
) -> None:
    with Proxy(own_redis.port) as proxy, mock.patch.object(async_server, "_MAX_IN_FLIGHT", 2):
        async with serving(proxy.port, most=2, timeout_s=2) as server:
            await ask(server, "PING")
            # when: 96 of them wait behind 4
            proxy.silence()
            began = time.monotonic()
            trips = (ask(server, "PING") for _ in range(100))
            outcomes = await asyncio.gather(*trips, return_exceptions=True)
            # then
            assert all(isinstance(outcome, CONNECTION_LOST) for outcome in outcomes)
            assert time.monotonic() - began < 25  # one after the other would be 50 s
            # and when it is back
            proxy.speak(lost=True)
            with suppress(*CONNECTION_LOST):
                await ask(server, "PING")  # may wait for a connection that was begun before
            assert await ask(server, "PING") == b"PONG"


async def test_a_reply_that_takes_its_time_is_no_silence(own_redis: EmbeddedBroker) -> None:
    with Proxy(own_redis.port) as proxy:
        async with serving(proxy.port, timeout_s=1.5) as server:
            await ask(server, "SET", "big", "x" * 2**21)
            # when: 32 pieces, together longer than the timeout
            proxy.delay_s = 0.06
            began = time.monotonic()
            big = await ask(server, "GET", "big")
            # then
            assert big == b"x" * 2**21
            assert time.monotonic() - began > 1.5


async def test_a_lost_connection_fails_what_was_in_flight_and_no_more(
    own_redis: EmbeddedBroker,
) -> None:
    with Proxy(own_redis.port) as proxy, mock.patch.object(async_server, "_MAX_IN_FLIGHT", 2):
        async with serving(proxy.port, most=1) as server:
            await ask(server, "PING")
            # given
            proxy.delay_s = 0.2
            callers = [asyncio.create_task(ask(server, "INCR", "n")) for _ in range(10)]
            # when
            await asyncio.wrap_future(proxy.cut(Cut("reply", share=0)))
            proxy.heal()
            outcomes = await asyncio.gather(*callers, return_exceptions=True)
            # then: the others went by the next connection
            failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            assert 1 <= len(failed) <= 2
            assert all(isinstance(error, CONNECTION_LOST) for error in failed)


async def test_a_server_that_has_become_a_replica_is_left(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    async with serving(own_redis.port) as server:
        await ask(server, "SET", "k", 1)
        before = {client["id"] for client in admin.client_list(_type="normal")}
        # when
        with read_only(admin), pytest.raises(redis.exceptions.ReadOnlyError):
            await ask(server, "SET", "k", 2)
        # then: the address may lead to another one now
        await ask(server, "SET", "k", 3)
        assert len({client["id"] for client in admin.client_list(_type="normal")} - before) == 1


async def test_an_error_is_the_callers_whose_command_it_was(own_redis: EmbeddedBroker) -> None:
    async with serving(own_redis.port, most=1) as server:
        good, bad, more = await asyncio.gather(
            ask(server, "ECHO", "a"),
            ask(server, "NONSENSE"),
            ask(server, "ECHO", "b"),
            return_exceptions=True,
        )
    assert (good, more) == (b"a", b"b")
    assert isinstance(bad, redis.ResponseError)


async def test_what_waits_inside_redis_has_a_connection_to_itself(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    async with serving(own_redis.port, most=100, blocking=True) as server:
        # given: more than a client's other connections
        waiting = [asyncio.create_task(ask(server, "BLPOP", f"list{n}", 60)) for n in range(40)]
        await until(lambda: admin.info("clients")["blocked_clients"] == 40)
        # when: the last one's comes first
        for n in reversed(range(1, 40)):
            admin.rpush(f"list{n}", "x")
            await waiting[n]
        # then
        assert not waiting[0].done()
        # and when: its caller gives up
        waiting[0].cancel()
        await until(lambda: admin.info("clients")["blocked_clients"] == 0)
        # then: what comes is not lost to him
        admin.rpush("list0", "x")
        assert await ask(server, "BLPOP", "list0", 60) == [b"list0", b"x"]


async def test_no_server_is_an_error_for_each_who_waits(
    own_redis: EmbeddedBroker,
) -> None:
    own_redis.stop()
    async with serving(own_redis.port) as server:
        trips = (ask(server, "PING") for _ in range(1000))
        outcomes = await asyncio.gather(*trips, return_exceptions=True)
        assert all(isinstance(outcome, redis.ConnectionError) for outcome in outcomes)


async def test_a_closed_server_says_so(own_redis: EmbeddedBroker) -> None:
    # given
    async with serving(own_redis.port, blocking=True, most=1) as server:
        callers = [asyncio.create_task(ask(server, "BLPOP", "list", 60)) for _ in range(2)]
        await asyncio.sleep(0.05)
    # then: who was in flight, who waited, and who comes too late
    for caller in callers:
        with pytest.raises(BrokerUnavailable, match="closed"):
            await caller
    with pytest.raises(BrokerUnavailable, match="closed"):
        await ask(server, "PING")
    assert len(asyncio.all_tasks()) == 1


async def test_nodes_share_a_limit_and_each_has_one_connection_for_sure(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given
    client = redis.asyncio.Redis(port=own_redis.port, protocol=2)
    connector, limit = async_connector(client.connection_pool), ConnectionLimit(4)
    nodes = [AsyncServer(connector, 5, limit) for _ in range(6)]
    # when
    for _ in range(3):
        await asyncio.gather(*(ask(node, "PING") for node in nodes for _ in range(100)))
    # then
    assert 6 <= connections(admin) <= 4 + 5
    for node in nodes:
        await node.aclose()
