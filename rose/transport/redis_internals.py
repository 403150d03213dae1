"""The only module that uses redis-py beyond its documented interface.

redis-py opens the connections, with addresses, TLS, passwords and Sentinels. After that they are
used without it, because it spends more time on a command than Redis does on most scripts.
tests/rose/transport/test_redis_internals.py fails first when redis-py changes any of this.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Protocol

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.connection import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection as Connection
from redis.connection import ConnectionPool, SSLConnection, parse_url
from redis.exceptions import ResponseError

from rose.transport.addresses import connected_blocking_socket, connected_socket
from rose.transport.failures import TURNED_AWAY, named

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
                self._connected.close()
                raise

        def _connection_arguments(self) -> dict[str, Any]:
            arguments = {**super()._connection_arguments(), "sock": self._connected}
            host, _ = arguments.pop("host"), arguments.pop("port")
            return {**arguments, "server_hostname": host} if "ssl" in arguments else arguments

    return Trying


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


# Blocking


def connector(pool: ConnectionPool) -> Connector:
    """Makes connections like the pool's."""
    base: Any = pool.connection_class
    connection_class = _blocking_trying_all_addresses(base)
    return lambda: connection_class(**pool.connection_kwargs)


@cache
def _blocking_trying_all_addresses(base: Any) -> Callable[..., Connection]:
    """redis-py tries the addresses of a name one after another, each for the whole timeout."""
    if not issubclass(base, redis.Connection):
        return base  # type: ignore[no-any-return]  # it has a path
    # Those of TLS and Sentinels call the next class, which is this one then.
    return _Trying if base is redis.Connection else type("Trying", (base, _Trying), {})


class _Trying(redis.Connection):
    def _connect(self) -> socket.socket:
        timeout_s = self.socket_connect_timeout
        assert timeout_s is not None  # noqa: S101 - the settings have one
        connected = connected_blocking_socket(self.host, self.port, timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.socket_keepalive:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in self.socket_keepalive_options.items():
                    connected.setsockopt(socket.IPPROTO_TCP, option, value)
            connected.settimeout(self.socket_timeout)
        except BaseException:
            connected.close()
            raise
        return connected


def open_blocking(connection: Connection) -> None:
    """Unless it is open. Raises: CONNECTION_LOST"""
    try:
        connection.connect()
    except ResponseError as error:
        raise named(error) from None


def read_reply(connection: Connection) -> Any:
    """Raises: CONNECTION_LOST, redis.ResponseError"""
    try:
        return connection.read_response()
    except ResponseError as error:
        raise named(error) from None


def reopen_if_dead(connection: Connection) -> None:
    """For one that was idle. Raises: CONNECTION_LOST"""
    open_blocking(connection)
    try:
        dead = connection.can_read()  # nobody has asked: it has been closed
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        dead = True
    if dead:
        connection.disconnect()
        open_blocking(connection)


class Pool(Protocol):
    def get_connection(self) -> Connection:
        """Raises: CONNECTION_LOST"""

    def release(self, connection: Connection) -> None: ...


def round_trips(trips: Sequence[tuple[Pool, bytes, int]]) -> list[list[Any]]:
    """Packed commands to several servers, and how many they are. Returns the replies as each Redis
    gave them, errors among them. All is sent before anything is read.

    Raises: CONNECTION_LOST: the commands may have been carried out.
    """
    with ExitStack() as stack:
        connections = [stack.enter_context(_pooled(pool)) for pool, _, _ in trips]
        for connection, (_, packed, _) in zip(connections, trips, strict=True):
            connection.send_packed_command([packed])
        return [
            _replies(connection, commands)
            for connection, (_, _, commands) in zip(connections, trips, strict=True)
        ]


@contextmanager
def _pooled(pool: Pool) -> Iterator[Connection]:
    """A connection for a round trip. One that stopped halfway is closed."""
    connection = pool.get_connection()
    try:
        yield connection
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _replies(connection: Connection, commands: int) -> list[Any]:
    replies = [_reply(connection) for _ in range(commands)]
    if any(isinstance(reply, TURNED_AWAY) for reply in replies):
        connection.disconnect()
    return replies


def _reply(connection: Connection) -> Any:
    try:
        return connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return named(error)
