"""The only module that uses redis-py beyond its documented interface.

redis-py opens the connections, with addresses, TLS, passwords and Sentinels. After that they are
used without it, because it spends more time on a command than Redis does on most scripts.
tests/rose/transport/test_redis_internals.py fails first when redis-py changes any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection as Connection
from redis.connection import ConnectionPool, SSLConnection, parse_url
from redis.crc import key_slot
from redis.exceptions import ReadOnlyError, ResponseError, SlotNotCoveredError

AsyncConnector = Callable[[], AsyncConnection]
Connector = Callable[[], Connection]

#: Redis' error line to the exception of redis-py.
ErrorParser = Callable[[str], Exception]


def read_url(url: str) -> dict[str, Any]:
    """User, password, database, TLS and socket options, by redis-py's names. Raises: ValueError"""
    options: dict[str, Any] = dict(parse_url(url))
    for name in ("host", "port"):
        options.pop(name, None)
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return options


def try_options(client: redis.Redis | redis.asyncio.Redis) -> None:
    """A pool is lazy: without this a misspelt option would come up at the first call.

    Raises: TypeError, ValueError
    """
    pool = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)


def sentinels_of(client: redis.Redis | redis.asyncio.Redis) -> Sequence[Any]:
    """The clients of the Sentinels behind a client of the primary, which does not close them."""
    manager = vars(client.connection_pool).get("sentinel_manager")
    return () if manager is None else manager.sentinels


# asyncio


def async_connector(pool: AsyncConnectionPool | AsyncClusterNode) -> AsyncConnector:
    """Makes connections like the pool's or the node's; their timeouts and repeats are ours."""
    own = {"socket_timeout": None, "retry": AsyncRetry(NoBackoff(), 0)}
    options = {**pool.connection_kwargs, **own}
    return lambda: pool.connection_class(**options)


def reply_timeout_s(pool: AsyncConnectionPool) -> float:
    timeout_s: float = pool.connection_kwargs["socket_timeout"]
    return timeout_s


async def open_connection(
    connection: AsyncConnection, timeout_s: float
) -> tuple[asyncio.Transport, ErrorParser]:
    """Its transport, for another protocol to read from. Raises: CONNECTION_LOST"""
    try:
        async with asyncio.timeout(timeout_s):
            await connection.connect()
    except TimeoutError:
        close_connection(connection)
        raise redis.TimeoutError(f"no connection within {timeout_s:g} s") from None
    except BaseException:
        close_connection(connection)
        raise
    writer = connection._writer
    if writer is None:
        raise redis.ConnectionError("the connection was lost at once")
    transport: Any = writer.transport
    return transport, connection._parser.parse_error


def close_connection(connection: AsyncConnection) -> None:
    """Without waiting."""
    connection._close()


async def find_nodes_async(cluster: redis.asyncio.RedisCluster) -> None:
    """Ask the cluster anew which node serves what. Raises: CONNECTION_LOST"""
    client: Any = cluster
    await client.aclose()
    await client.initialize()


def async_node(cluster: redis.asyncio.RedisCluster, key: str) -> tuple[str, AsyncConnector]:
    """The name of the node that serves the key, and a connector to it. Raises: CONNECTION_LOST"""
    node = cluster.get_node_from_key(key)
    if node is None:
        raise SlotNotCoveredError(f"no node of the cluster serves {key}")
    return node.name, async_connector(node)


# Blocking


def connector(pool: ConnectionPool) -> Connector:
    """Makes connections like the pool's."""
    return lambda: pool.connection_class(**pool.connection_kwargs)


def round_trip(pool: ConnectionPool, packed: bytes, commands: int) -> list[Any]:
    """The replies to packed commands as Redis gave them, errors among them.

    Raises: CONNECTION_LOST: the commands may have been carried out.
    """
    connection = pool.get_connection()
    try:
        connection.send_packed_command([packed])
        replies = [_reply(connection) for _ in range(commands)]
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            connection.disconnect()  # the address may lead to another server now
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    return replies


def _reply(connection: Connection) -> Any:
    try:
        return connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error


def find_nodes(cluster: redis.RedisCluster) -> None:
    """Ask the cluster anew which node serves what. Raises: CONNECTION_LOST"""
    cluster.nodes_manager.initialize()


def node(cluster: redis.RedisCluster, key: str) -> tuple[str, Connector]:
    """The name of the node that serves the key, and a connector to it. Raises: CONNECTION_LOST"""
    found = cluster.nodes_manager.get_node_from_slot(key_slot(key.encode()))
    return found.name, connector(cluster.get_redis_connection(found).connection_pool)
