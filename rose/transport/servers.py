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

from rose.settings import QueueSettings
from rose.transport.async_server import AsyncServer, ConnectionLimit, without_errors
from rose.transport.connection import address_of, connect, connect_async
from rose.transport.pipeline import Command, pack
from rose.transport.redis_internals import async_connector, reply_timeout_s, round_trip
from rose.transport.urls import Kind

#: Of commands that wait inside Redis each needs a connection.
_UNLIMITED = 10_000


class AsyncPrimary(AsyncServer):
    """One server, or the primary that Sentinels name."""

    def __init__(self, client: redis.asyncio.Redis, *, blocking: bool) -> None:
        """`client`: for address and options; its own pool stays empty."""
        pool = client.connection_pool
        limit = ConnectionLimit(_UNLIMITED) if blocking else ConnectionLimit()
        super().__init__(async_connector(pool), reply_timeout_s(pool), limit, blocking=blocking)
        self._client = client

    async def aclose(self) -> None:
        await super().aclose()
        await self._client.aclose()


class AsyncCluster:
    sharded = True

    def __init__(self, client: redis.asyncio.RedisCluster) -> None:
        self._client = client
        self.aclose = client.aclose

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        if commands[0][0] == "SCRIPT":
            return [await self._client.script_load(str(commands[0][2]))]  # on every primary
        # redis-py converts the replies of commands whose name is in upper case.
        lower_case = [(str(verb).lower(), *words) for verb, *words in commands]
        try:
            # redis-py's pipeline would close all connections of the client after a failure.
            if len(lower_case) == 1:
                return [await self._client.execute_command(*lower_case[0])]
            pipeline = self._client.pipeline(transaction=False)
            for words in lower_case:
                pipeline.execute_command(*words)
            replies = await pipeline.execute(raise_on_error=False)
        except AttributeError as error:
            # redis-py raises this if the connection is closed while it is opened.
            raise redis.ConnectionError("closed while it was being opened") from error
        return without_errors(replies)


class Server:
    """Thread-safe."""

    sharded = False

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self.close = client.close

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        packed = b"".join(map(pack, commands))
        return without_errors(round_trip(self._pool, packed, len(commands)))


class Cluster:
    """Thread-safe. Asks for the nodes at the first exchange."""

    sharded = True

    def __init__(self, connect: Callable[[], redis.Redis | redis.RedisCluster]) -> None:
        self._connect = connect
        self._client: Any = None
        self._connecting = threading.Lock()

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        client = self._connected()
        if commands[0][0] == "SCRIPT":
            return [client.script_load(commands[0][2])]  # on every primary
        if len(commands) == 1:
            return [client.execute_command(*commands[0])]
        pipeline = client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        return without_errors(pipeline.execute(raise_on_error=False))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Any:
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
        return self._client


def open_server_async(
    settings: QueueSettings, reply_timeout_s: float | None, blocking: bool
) -> AsyncServer | AsyncCluster:
    """Raises: ConfigurationError"""
    retries = min(settings.redis_retries, 1)
    client = connect_async(settings, retries=retries, reply_timeout_s=reply_timeout_s)
    if isinstance(client, redis.asyncio.Redis):
        return AsyncPrimary(client, blocking=blocking)
    return AsyncCluster(client)


def open_server(
    settings: QueueSettings,
    reply_timeout_s: float | None,
    blocking: bool,  # noqa: ARG001 - each round trip has a connection to itself anyway
) -> Server | Cluster:
    """Raises: ConfigurationError"""
    if address_of(settings).kind is Kind.CLUSTER:
        retries = min(settings.redis_retries, 1)
        return Cluster(partial(connect, settings, retries=retries, reply_timeout_s=reply_timeout_s))
    client: Any = connect(settings, reply_timeout_s=reply_timeout_s)
    return Server(client)
