"""One round trip, on a server and on a cluster, asyncio and blocking: commands in, raw replies out.

`exchange` raises the first error among the replies and repeats nothing. It raises CONNECTION_LOST;
then the commands may have been carried out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import ReadOnlyError, ResponseError

from rose.settings import QueueSettings
from rose.transport.connection import address_of, connect, connect_async
from rose.transport.pipeline import Command, RoundTrips, pack
from rose.transport.redis_internals import async_connector, reply_timeout_s
from rose.transport.urls import Kind


class AsyncServer:
    """One server, or the one that Sentinels name."""

    sharded = False

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client  # knows the way; its own pool stays empty
        pool = client.connection_pool
        self._round_trips = RoundTrips(async_connector(pool), reply_timeout_s(pool))

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        return _without_errors(await self._round_trips.exchange(commands))

    async def load_script(self, source: str) -> None:
        await self.exchange([("SCRIPT", "LOAD", source)])

    async def aclose(self) -> None:
        self._round_trips.close()
        await self._client.aclose()


class AsyncCluster:
    sharded = True

    def __init__(self, client: redis.asyncio.RedisCluster) -> None:
        self._client = client
        self.aclose = client.aclose

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        # redis-py knows replies that it would put into another form by upper case.
        said = [(str(verb).lower(), *words) for verb, *words in commands]
        try:
            if len(said) == 1:  # not as a pipeline, which in trouble closes everybody's connections
                return [await self._client.execute_command(*said[0])]
            pipeline = self._client.pipeline(transaction=False)
            for words in said:
                pipeline.execute_command(*words)
            replies = await pipeline.execute(raise_on_error=False)
        except AttributeError as error:
            # Such a connection was just being opened.
            raise redis.ConnectionError("closed while it was being opened") from error
        return _without_errors(replies)

    async def load_script(self, source: str) -> None:
        """On every primary."""
        await self._client.script_load(source)


class Server:
    """Thread-safe."""

    sharded = False

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self.close = client.close

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        connection = self._pool.get_connection()
        try:
            connection.send_packed_command([b"".join(map(pack, commands))])
            replies = [_reply(connection) for _ in commands]
            if any(isinstance(reply, ReadOnlyError) for reply in replies):
                connection.disconnect()  # the address may lead to another server now
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
        return _without_errors(replies)

    def load_script(self, source: str) -> None:
        self.exchange([("SCRIPT", "LOAD", source)])


class Cluster:
    """Thread-safe. Asks for the nodes at the first exchange."""

    sharded = True

    def __init__(self, connect: Callable[[], redis.Redis | redis.RedisCluster]) -> None:
        self._connect = connect
        self._client: Any = None
        self._connecting = threading.Lock()

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        client = self._connected()
        if len(commands) == 1:
            return [client.execute_command(*commands[0])]
        pipeline = client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        return _without_errors(pipeline.execute(raise_on_error=False))

    def load_script(self, source: str) -> None:
        """On every primary."""
        self._connected().script_load(source)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Any:
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
        return self._client


def open_server_async(
    settings: QueueSettings, reply_timeout_s: float | None
) -> AsyncServer | AsyncCluster:
    """Raises: ConfigurationError"""
    client = connect_async(settings, reply_timeout_s=reply_timeout_s)
    if isinstance(client, redis.asyncio.Redis):
        return AsyncServer(client)
    return AsyncCluster(client)


def open_server(settings: QueueSettings, reply_timeout_s: float | None) -> Server | Cluster:
    """Raises: ConfigurationError"""
    if address_of(settings).kind is Kind.CLUSTER:
        return Cluster(partial(connect, settings, reply_timeout_s=reply_timeout_s))
    client: Any = connect(settings, reply_timeout_s=reply_timeout_s)
    return Server(client)


def _without_errors(replies: list[Any]) -> list[Any]:
    """Raised here and not by a pipeline of redis-py, which would quote the call and with it the
    prompt."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error
