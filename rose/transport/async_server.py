"""One server, for an asyncio client: a few connections, shared by any number of round trips.

Round trips are pipelined: the commands of one are sent while the replies of others are due, and
Redis answers in order. A server has a connection for each round trip while those are few, and then
shares them; so the number of callers bounds no resource of Redis.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.asyncio.connection import AbstractConnection

from rose.errors import ClientClosed
from rose.transport.event_loop import LoopGuard
from rose.transport.failures import CONNECTION, TURNED_AWAY, Closable
from rose.transport.pipeline import IDLE_S, Command, PipelinedConnection, pack, without_errors
from rose.transport.redis_internals import AsyncConnector

#: Connections of a client for round trips, over all nodes of a cluster.
_MAX_CONNECTIONS = 16

#: Round trips in flight on a connection. If it is lost, this many are repeated.
_MAX_IN_FLIGHT = 128


class ConnectionLimit:
    """How many connections may be open. The nodes of a cluster share one; each of them may have one
    connection whatever the others have, so that no node waits for another."""

    def __init__(self, connections: int = _MAX_CONNECTIONS) -> None:
        self._left = connections

    def take(self, *, first: bool) -> bool:
        """`first`: the server has none."""
        if self._left <= 0 and not first:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        self._left += 1


class _RoundTrip:
    __slots__ = ("commands", "connection", "done", "packed", "replies")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.packed = b"".join(map(pack, commands))
        self.commands = len(commands)
        self.replies: list[Any] = []
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.connection: _Connection | None = None

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class AsyncServer(Closable):
    """One server, or the primary that Sentinels name; or a node of a cluster."""

    sharded = False

    def __init__(
        self,
        connector: AsyncConnector,
        timeout_s: float,
        limit: ConnectionLimit,
        *,
        blocking: bool = False,
    ) -> None:
        """`timeout_s`: the longest silence while replies are due.
        `blocking`: for commands that wait inside Redis. None is sent behind another one, so `limit`
        must allow for as many as there are callers."""
        self._connector = connector
        self._timeout_s = timeout_s
        self._limit = limit
        self._blocking = blocking
        self._in_flight = 1 if blocking else _MAX_IN_FLIGHT
        self._connections: list[_Connection] = []
        self._openings: set[asyncio.Task[None]] = set()
        self._failures, self._failed_at = 0, 0.0
        self._waiting: deque[_RoundTrip] = deque()
        self._loop_guard = LoopGuard()

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """The replies; raises the first error among them."""
        return without_errors(await self.round_trip(commands))

    async def round_trip(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, errors among them."""
        self._check_open()
        self._loop_guard.check()
        trip = _RoundTrip(commands)
        connection = None if self._waiting else self._least_loaded()
        if connection is None:
            self._waiting.append(trip)
            self._open(len(self._waiting))
        else:
            if connection.due:
                self._open(1)
            connection.send(trip)
        try:
            return await trip.done
        except asyncio.CancelledError:
            if self._blocking and trip.connection is not None:
                trip.connection.end(redis.ConnectionError("cancelled"))  # or Redis would go on
            raise

    async def aclose(self) -> None:
        self._closed = True
        if not self._loop_guard.is_here():
            return  # nothing is open, or it went with its event loop
        for task in self._openings:
            task.cancel()
        if self._openings:
            await asyncio.wait(self._openings)
        for connection in list(self._connections):
            connection.end(ClientClosed())
        self._fail_waiting(ClientClosed())

    def _least_loaded(self) -> _Connection | None:
        """The first ones are preferred, so that those who are not needed fall idle."""
        best, least = None, self._in_flight
        for connection in self._connections:
            load = len(connection.due)
            if load == 0:
                return connection
            if load < least and not connection.congested:
                best, least = connection, load
        return best

    def _open(self, wanted: int) -> None:
        """See that so many connections are being opened, within the limit. After a failure only one
        at a time is tried."""
        while len(self._openings) < (1 if self._failures else wanted):
            first = not self._connections and not self._openings
            if self._closed or not self._limit.take(first=first):
                return
            task = asyncio.get_running_loop().create_task(self._add())
            self._openings.add(task)
            task.add_done_callback(self._opened)

    async def _add(self) -> None:
        connection = _Connection(self._timeout_s, self._on_free, self._on_end)
        try:
            if self._failures:
                again_at = self._failed_at + CONNECTION.pause_s(self._failures)
                await asyncio.sleep(again_at - asyncio.get_running_loop().time())
            await connection.open(self._connector())
        except asyncio.CancelledError:
            self._limit.give_back()
            raise
        except Exception as error:  # noqa: BLE001 - those who wait are told
            self._limit.give_back()
            self._failures += 1
            self._failed_at = asyncio.get_running_loop().time()
            if not self._connections and len(self._openings) == 1:
                self._fail_waiting(error)
        else:
            self._failures = 0
            self._connections.append(connection)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._openings.discard(task)
        self._dispatch()

    def _dispatch(self) -> None:
        """Send what waits, in order."""
        while self._waiting:
            connection = self._least_loaded()
            if connection is None:
                self._open(len(self._waiting))
                return
            trip = self._waiting.popleft()
            if not trip.done.done():  # its caller may have given up
                connection.send(trip)

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for trip in waiting:
            trip.fail(error)

    def _on_free(self) -> None:
        if self._waiting:
            self._dispatch()

    def _on_end(self, connection: _Connection, error: Exception) -> None:
        """It takes no more round trips."""
        self._connections.remove(connection)
        self._limit.give_back()
        if isinstance(error, redis.TimeoutError):  # the others would wait in vain too
            self._fail_waiting(error)
        self._dispatch()


class _Connection:
    """An open connection and the round trips in flight on it, oldest first."""

    def __init__(
        self,
        timeout_s: float,
        on_free: Callable[[], None],
        on_end: Callable[[_Connection, Exception], None],
    ) -> None:
        """`on_free`: it can take another round trip. `on_end` is called once."""
        self.due: deque[_RoundTrip] = deque()
        self._timeout_s = timeout_s
        self._on_free, self._on_end = on_free, on_end
        self._pipeline = PipelinedConnection(self._accept, self._lose, on_free)
        self._outgoing: list[bytes] = []
        self._quiet_since = 0.0
        """since when the replies are due, or since when it has been idle"""
        self._ended = False

    @property
    def congested(self) -> bool:
        return self._pipeline.congested

    async def open(self, connection: AbstractConnection) -> None:
        """Raises: CONNECTION_LOST"""
        await self._pipeline.open(connection, self._timeout_s)
        self._loop = asyncio.get_running_loop()
        self._quiet_since = self._loop.time()
        self._timer = self._loop.call_later(self._timeout_s, self._watch)

    def send(self, trip: _RoundTrip) -> None:
        trip.connection = self
        if not self.due:
            self._quiet_since = self._loop.time()
            self._pipeline.write(trip.packed)
        else:
            if not self._outgoing:  # one write for all that comes in a turn of the event loop
                self._loop.call_soon(self._flush)
            self._outgoing.append(trip.packed)
        self.due.append(trip)

    def end(self, error: Exception) -> None:
        """Close it. The round trips in flight fail."""
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        self._pipeline.close()
        due, self.due = self.due, deque()
        for trip in due:
            trip.fail(error)
        self._on_end(self, error)

    def _flush(self) -> None:
        packed, self._outgoing = b"".join(self._outgoing), []
        if not self._ended:
            self._pipeline.write(packed)

    def _accept(self, reply: Any) -> None:
        if self._ended:
            return
        if not self.due:
            raise redis.ConnectionError("Redis answers what nobody has asked")
        trip = self.due[0]
        trip.replies.append(reply)
        if len(trip.replies) < trip.commands:
            return
        self.due.popleft()
        if not trip.done.done():
            trip.done.set_result(trip.replies)
        for reply in trip.replies:
            if isinstance(reply, (*TURNED_AWAY, redis.ConnectionError)):
                self.end(reply)
                return
        self._on_free()

    def _lose(self, reason: str) -> None:
        self.end(redis.ConnectionError(f"the connection is lost: {reason}"))

    def _watch(self) -> None:
        """Called often enough to find silence in time."""
        now = self._loop.time()
        quiet_s = now - max(self._quiet_since, self._pipeline.heard_at)
        if self.due and quiet_s >= self._timeout_s:
            self.end(redis.TimeoutError("Redis does not answer"))
        elif not self.due and quiet_s >= IDLE_S:
            self.end(redis.ConnectionError("idle"))
        else:
            left_s = self._timeout_s - quiet_s if self.due else self._timeout_s
            self._timer = self._loop.call_later(min(left_s, IDLE_S), self._watch)
