"""The only module that uses redis-py beyond its documented interface.

redis-py opens the connections, with addresses, TLS, passwords and Sentinels. After that they are
used without it, because it spends more time on a command than Redis does on most scripts.
tests/rose/transport/test_redis_internals.py fails first when redis-py changes any of this.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.exceptions import ResponseError

from rose.transport.addresses import connected_socket
from rose.transport.failures import named

AsyncConnector = Callable[[], AsyncConnection]

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


def async_connector(pool: AsyncConnectionPool) -> AsyncConnector:
    """Makes connections like the pool's; their timeouts and repeats are ours."""
    own = {"socket_timeout": None, "retry": AsyncRetry(NoBackoff(), 0)}
    options = {**pool.connection_kwargs, **own}
    base: Any = pool.connection_class
    connection_class = _trying_all_addresses(base)
    return lambda: connection_class(**options)


@cache
def _trying_all_addresses(base: Any) -> Callable[..., AsyncConnection]:
    """asyncio tries the addresses of a name one after another, and the first one may take all the
    time there is. It can do better, but uvloop cannot."""
    if not issubclass(base, redis.asyncio.Connection):
        return base  # type: ignore[no-any-return]  # it has a path

    class Trying(base):  # type: ignore[misc]
        async def _connect(self) -> None:
            async with asyncio.timeout(self.socket_connect_timeout):
                self._connected = await connected_socket(self.host, self.port)
            try:
                await super()._connect()
            except BaseException:
                _give_up(self._connected)
                raise

        def _connection_arguments(self) -> dict[str, Any]:
            arguments = {**super()._connection_arguments(), "sock": self._connected}
            host, _ = arguments.pop("host"), arguments.pop("port")
            return {**arguments, "server_hostname": host} if "ssl" in arguments else arguments

    return Trying


def _give_up(connected: socket.socket) -> None:
    """With its transport, if there is one: asyncio lets that of a finished TLS handshake wait for
    the server's farewell. Closed beneath it, the descriptor would go to another socket, which the
    loop could not use then."""
    transports = getattr(asyncio.get_running_loop(), "_transports", {})
    transport = transports.get(connected.fileno())
    if transport is None:
        connected.close()
    else:
        transport.abort()


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
    except ResponseError as error:
        close_connection(connection)
        raise named(error) from None
    except BaseException:
        close_connection(connection)
        raise
    writer = connection._writer
    if writer is None:
        raise redis.ConnectionError("the connection was lost at once")
    transport: Any = writer.transport
    parse_error: ErrorParser = connection._parser.parse_error
    return transport, lambda line: named(parse_error(line))


def close_connection(connection: AsyncConnection) -> None:
    """Without waiting."""
    connection._close()


def close_descriptor(transport: asyncio.BaseTransport) -> None:
    """As the end of this process would, and no more: its loop is another process'."""
    wrapped = transport.get_extra_info("socket")
    if wrapped is not None:
        wrapped._sock.close()
