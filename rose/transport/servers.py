"""One round trip, on a server and on a cluster, asyncio and blocking: commands in, raw replies out.

`exchange` raises the first error among the replies and repeats nothing. It raises CONNECTION_LOST;
then the commands may have been carried out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import ReadOnlyError

from rose.settings import QueueSettings
from rose.transport.connection import address_of, connect, connect_async
from rose.transport.pipeline import Command, PipelinedConnection, pack
from rose.transport.redis_internals import async_connector, reply_timeout_s, round_trip
from rose.transport.urls import Kind


class AsyncServer:
    """One server, or the primary that Sentinels name. Each round trip has its own connection."""

    sharded = False

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client  # for address and options; its own pool stays empty
        self._connector = async_connector(client.connection_pool)
        self._timeout_s = reply_timeout_s(client.connection_pool)
        self._idle: list[_RoundTrip] = []

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        trip = self._take_idle()
        if trip is None:
            trip = _RoundTrip()
            await trip.connection.open(self._connector(), self._timeout_s)
        try:
            replies = await trip.make(commands, self._timeout_s)
        except BaseException:
            trip.connection.close()
            raise
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            trip.connection.close()  # the address may lead to another server now
        else:
            self._idle.append(trip)
        return _without_errors(replies)

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop().connection.close()
        await self._client.aclose()

    def _take_idle(self) -> _RoundTrip | None:
        while self._idle:
            trip = self._idle.pop()
            if not trip.connection.lost:
                return trip
        return None


class _RoundTrip:
    """A connection, and the round trip that is being made on it."""

    def __init__(self) -> None:
        self.connection = PipelinedConnection(self._accept, self._lose)
        self._due = 0
        self._replies: list[Any] = []
        self._done: asyncio.Future[list[Any]] | None = None

    async def make(self, commands: Sequence[Command], timeout_s: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        self._due, self._replies, self._done = len(commands), [], loop.create_future()
        timer = loop.call_later(timeout_s, self._fail, redis.TimeoutError("Redis does not answer"))
        try:
            self.connection.send(commands)
            return await self._done
        finally:
            timer.cancel()
            self._done = None

    def _accept(self, reply: Any) -> None:
        if isinstance(reply, redis.ConnectionError):  # such as LOADING
            self._fail(reply)
        self._replies.append(reply)
        if len(self._replies) == self._due and self._done is not None and not self._done.done():
            self._done.set_result(self._replies)

    def _lose(self, reason: str) -> None:
        self._fail(redis.ConnectionError(f"the connection is lost: {reason}"))

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


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
        return _without_errors(replies)


class Server:
    """Thread-safe."""

    sharded = False

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self.close = client.close

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        packed = b"".join(map(pack, commands))
        return _without_errors(round_trip(self._pool, packed, len(commands)))


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
        return _without_errors(pipeline.execute(raise_on_error=False))

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
    retries = min(settings.redis_retries, 1)
    client = connect_async(settings, retries=retries, reply_timeout_s=reply_timeout_s)
    if isinstance(client, redis.asyncio.Redis):
        return AsyncServer(client)
    return AsyncCluster(client)


def open_server(settings: QueueSettings, reply_timeout_s: float | None) -> Server | Cluster:
    """Raises: ConfigurationError"""
    if address_of(settings).kind is Kind.CLUSTER:
        retries = min(settings.redis_retries, 1)
        return Cluster(partial(connect, settings, retries=retries, reply_timeout_s=reply_timeout_s))
    client: Any = connect(settings, reply_timeout_s=reply_timeout_s)
    return Server(client)


def _without_errors(replies: list[Any]) -> list[Any]:
    """Raised here and not by a pipeline of redis-py, which would quote the call and with it the
    prompt."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
