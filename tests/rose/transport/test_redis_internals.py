"""What `rose.transport.redis_internals` takes for granted of redis-py.

If these fail after an update of redis-py, look here before anywhere else: the other failures follow
from them.
"""

import inspect
from collections.abc import Callable
from importlib.metadata import version

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.connection import ConnectionPool
from redis.exceptions import NoScriptError, ReadOnlyError

from rose.transport import redis_internals
from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server


def test_it_is_the_major_version_that_the_rest_was_written_for() -> None:
    assert version("redis").split(".")[0] == "8"


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (redis.RedisCluster.get_redis_connection, ["node"]),
        (redis.RedisCluster.get_primaries, []),
        (AsyncConnection.connect, []),
        (AsyncConnection._close, []),
    ],
    ids=lambda value: getattr(value, "__qualname__", None),
)
def test_the_methods_are_there(method: Callable[..., object], parameters: list[str]) -> None:
    assert set(parameters) <= set(inspect.signature(method).parameters)


def test_closing_without_waiting_is_no_coroutine() -> None:
    assert not inspect.iscoroutinefunction(AsyncConnection._close)


def test_pools_say_how_they_make_connections() -> None:
    for pool in (ConnectionPool(port=1), AsyncConnectionPool(port=1)):
        connection = pool.connection_class(**pool.connection_kwargs)
        assert connection.port == 1


def test_a_pool_behind_sentinels_knows_them() -> None:
    for form in (redis.sentinel, redis.asyncio.sentinel):
        client = form.Sentinel([("h", 1), ("h", 2)]).master_for("primary")
        assert len(redis_internals.sentinels_of(client)) == 2


@needs_redis_server
async def test_an_open_connection_gives_its_transport_and_reads_errors(
    own_redis: EmbeddedBroker,
) -> None:
    # given
    client = redis.asyncio.Redis(port=own_redis.port, protocol=2)
    connection = redis_internals.async_connector(client.connection_pool)()
    # when
    transport, parse_error = await redis_internals.open_connection(connection, 5)
    # then
    assert transport.get_protocol() is not None
    assert isinstance(parse_error("NOSCRIPT no such script"), NoScriptError)
    assert isinstance(parse_error("READONLY a replica"), ReadOnlyError)
    # when
    redis_internals.close_connection(connection)
    # then
    assert transport.is_closing()
    await client.aclose()
