"""What `rose.transport.redis_internals` takes for granted of redis-py.

If these fail after an update of redis-py, look here before anywhere else: the other failures follow
from them.
"""

import asyncio
import inspect
import ssl
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

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
from tests.support.certificates import Certificates


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


async def test_a_connection_that_is_given_up_leaves_its_descriptor_to_others(
    tmp_path: Path,
) -> None:
    # given: a server that answers nothing but the handshake
    certificates = Certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
    writers: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"rediss://127.0.0.1:{port}?{certificates.authority()}"
        client = redis.asyncio.Redis.from_url(url)
        make = redis_internals.async_connector(client.connection_pool)
        # when: it is given up in the middle of anything
        for turns in range(60):
            opening = asyncio.create_task(redis_internals.open_connection(make(), 60))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            # then: because of that, and not because somebody else has its descriptor
            with pytest.raises(asyncio.CancelledError):
                await opening
        await client.aclose()
        for writer in writers:
            writer.transport.abort()
    assert len(writers) > 1
