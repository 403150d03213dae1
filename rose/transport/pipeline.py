"""Pipelines of commands to one Redis server, in as little time as they can take.

The client library spends more on a command than Redis does on most scripts: a pool with a lock,
telemetry, tasks and turns of the event loop, packing in Python. So it opens the connections, and
hiredis alone packs the commands and reads the replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hiredis
import redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import InvalidResponse, ReadOnlyError

from rose.transport.redis_internals import AsyncConnector, close_connection, open_connection

Command = Sequence[str | bytes | int]

#: Its annotation allows for one word only.
pack: Callable[[Any], bytes] = hiredis.pack_command


class PipelinedConnection(asyncio.Protocol):
    """One connection, opened. Replies come one by one, as Redis gave them, errors among them."""

    def __init__(
        self, on_reply: Callable[[Any], None], on_lost: Callable[[str], None] = lambda _: None
    ) -> None:
        """`on_lost` is called once, with the reason; also after `close`."""
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._reason = "closed"
        self.lost = True

    async def open(self, connection: AbstractConnection, timeout_s: float) -> None:
        """Raises: CONNECTION_LOST"""
        self._transport, parse_error = await open_connection(connection, timeout_s)
        self._connection = connection
        self._replies = hiredis.Reader(protocolError=InvalidResponse, replyError=parse_error)
        self._former = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self.lost = False

    def send(self, commands: Sequence[Command]) -> None:
        self._transport.write(b"".join(map(pack, commands)))

    def close(self, reason: str = "closed") -> None:
        self._reason = reason
        self._transport.abort()  # what is still to be written may never get through
        close_connection(self._connection)

    def data_received(self, data: bytes) -> None:
        self._replies.feed(data)
        try:
            while (reply := self._replies.gets()) is not False:
                self._on_reply(reply)
        except (redis.RedisError, ValueError) as error:
            self.close(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self._former.connection_lost(error)
            close_connection(self._connection)
            self._on_lost(str(error) if error else self._reason)


class RoundTrips:
    """Belongs to one event loop. Has as many connections as there are round trips at a time."""

    def __init__(self, connector: AsyncConnector, timeout_s: float) -> None:
        """`timeout_s`: to connect, and for a reply"""
        self._connector = connector
        self._timeout_s = timeout_s
        self._idle: list[_RoundTrip] = []

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Raises: CONNECTION_LOST: the commands may have been carried out."""
        trip = self._take_idle() or await self._open()
        try:
            replies = await trip.make(commands, self._timeout_s)
        except BaseException:
            trip.connection.close()
            raise
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            trip.connection.close()  # the address may lead to another server now
        else:
            self._idle.append(trip)
        return replies

    def close(self) -> None:
        while self._idle:
            self._idle.pop().connection.close()

    def _take_idle(self) -> _RoundTrip | None:
        while self._idle:
            trip = self._idle.pop()
            if not trip.connection.lost:
                return trip
        return None

    async def _open(self) -> _RoundTrip:
        trip = _RoundTrip()
        await trip.connection.open(self._connector(), self._timeout_s)
        return trip


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


def field_of(fields: Sequence[bytes] | Mapping[bytes, bytes], name: bytes) -> bytes | None:
    """From a stream's entry as Redis gives it: name, value, ...; the last of that name. A blocking
    client of a cluster gives a mapping."""
    if isinstance(fields, Mapping):
        return fields.get(name)
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(name)
