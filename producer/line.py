"""One connection that carries any number of subscriptions.

The connection belongs to three small tasks (read, write, watch) that live and die together. When
it is lost, every listener is told; the next one to listen opens it again, once for all.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from producer.connection import CONNECTION_LOST
from rose_errors import BrokerUnavailable

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5


class Inbox:
    """The messages of one listener; memory is bounded, since the log has them all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._messages: deque[bytes] = deque()
        self._overflowed = False
        self._lost: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: bytes) -> None:
        if len(self._messages) >= self._size:
            self._messages.clear()
            self._overflowed = True
        self._messages.append(message)
        self._wake()

    def lose(self, reason: str) -> None:
        self._lost = reason
        self._wake()

    async def get(self, timeout_s: float) -> bytes | None:
        """The next message. None: look into the log; either nothing came for so long, or more
        came than is kept.

        Raises:
            redis.ConnectionError: the subscription is lost; listen again.
        """
        if not self._something:
            await self._wait(timeout_s)
        if self._overflowed:
            self._overflowed = False
            return None
        if self._messages:
            return self._messages.popleft()
        if self._lost is not None:
            raise redis.ConnectionError(f"the subscription is lost: {self._lost}")
        return None

    @property
    def _something(self) -> bool:
        return bool(self._messages) or self._overflowed or self._lost is not None

    async def _wait(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Attempt:
    """One attempt for all who wait for it, and a pause after one that failed."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._pause_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def make(self) -> None:
        """Raises: what the work raises."""
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.create_task(self._run())
        await asyncio.wait([task])
        if task.cancelled():
            raise closed()
        task.result()

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        if self._pause_s:
            await asyncio.sleep(self._pause_s * random.uniform(0.5, 1))  # noqa: S311 - jitter
        self._pause_s = min(max(self._pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        await self._work()
        self._pause_s = 0


@dataclass(slots=True, eq=False)
class Subscription:
    """One channel of a line, for all who listen to it."""

    channel: bytes
    confirmed: asyncio.Future[None]
    inboxes: list[Inbox] = field(default_factory=list)

    def refuse(self, error: Exception) -> None:
        if not self.confirmed.done():
            self.confirmed.set_exception(error)
            self.confirmed.exception()  # seen: there may be nobody left who waits for it


@dataclass(slots=True)
class _Sent:
    """A command whose reply is due; they come in the order of the commands."""

    verb: str
    subscription: Subscription | None = None

    @property
    def words(self) -> tuple[str | bytes, ...]:
        return (self.verb, self.subscription.channel) if self.subscription else (self.verb,)


class Line:
    """`open_connection` makes one that is not connected yet. `sharded`: to a node of a cluster."""

    def __init__(
        self, open_connection: Callable[[], AbstractConnection], timeout_s: float, *, sharded: bool
    ) -> None:
        self._open_connection = open_connection
        self._timeout_s = timeout_s
        self._prefix = "S" if sharded else ""
        self._channels: dict[bytes, Subscription] = {}
        self._connecting = Attempt(self._connect)
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._outgoing: list[_Sent] = []
        self._news = asyncio.Event()
        self._due: deque[_Sent] = deque()
        self._heard = False

    async def subscribe(self, channel: str, inbox: Inbox) -> Subscription:
        """Returns once Redis has confirmed it.

        Raises:
            CONNECTION_LOST, redis.ResponseError
        """
        if self._task is None:
            await self._connecting.make()
        if self._task is None:
            raise redis.ConnectionError("the connection was lost at once")
        key = channel.encode()
        subscription = self._channels.get(key)
        if subscription is None:
            confirmed = asyncio.get_running_loop().create_future()
            subscription = self._channels[key] = Subscription(key, confirmed)
            self._send(f"{self._prefix}SUBSCRIBE", subscription)
        subscription.inboxes.append(inbox)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(subscription.confirmed)
        except TimeoutError:
            self.leave(subscription, inbox)
            raise redis.TimeoutError("no confirmation of the subscription") from None
        except BaseException:
            self.leave(subscription, inbox)
            raise
        return subscription

    def leave(self, subscription: Subscription, inbox: Inbox) -> None:
        """The last listener ends the subscription. Does not wait for Redis to confirm that."""
        if inbox in subscription.inboxes:
            subscription.inboxes.remove(inbox)
        current = self._channels.get(subscription.channel)
        if current is subscription and not subscription.inboxes:
            del self._channels[subscription.channel]
            self._send(f"{self._prefix}UNSUBSCRIBE", subscription)

    async def close(self) -> None:
        await self._connecting.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._connection is not None:  # it was cancelled before its first step
            await self._connection.disconnect(nowait=True)

    async def _connect(self) -> None:
        if self._task is not None:
            return
        connection = self._open_connection()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._connection = connection
        self._task = asyncio.create_task(self._serve(connection))

    async def _serve(self, connection: AbstractConnection) -> None:
        parts = [
            asyncio.create_task(part)
            for part in (self._read(connection), self._write(connection), self._watch())
        ]
        reason = "closed"
        try:
            await asyncio.gather(*parts)  # none of them ends but by failing
        except (RedisError, OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await connection.disconnect(nowait=True)
            self._connection = None
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        lost = list(self._channels.values())
        self._task = None
        self._channels.clear()
        self._outgoing.clear()
        self._due.clear()
        for subscription in lost:
            subscription.refuse(redis.ConnectionError(f"the connection is lost: {reason}"))
            for inbox in subscription.inboxes:
                inbox.lose(reason)

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            try:
                # No timeout: an own one for each message would cost more than the message.
                reply = await connection.read_response(timeout=math.inf, disconnect_on_error=False)
            except CONNECTION_LOST:
                raise
            except ResponseError as error:
                self._refused(error)
            else:
                self._heard = True
                self._accept(reply)

    def _accept(self, reply: Any) -> None:
        if not isinstance(reply, list):  # the PONG of a connection without subscriptions
            reply = [b"pong", reply]
        kind, channel, *data = reply
        if kind in (b"message", b"smessage"):
            subscription = self._channels.get(channel)
            if subscription is not None:
                for inbox in subscription.inboxes:
                    inbox.put(data[0])
            return
        due = self._due[0] if self._due else None
        if due is None or not _answers(kind, channel, due):
            # A cluster ends the subscriptions of a slot that moves to another node.
            raise redis.ConnectionError("Redis has ended a subscription")
        self._due.popleft()
        if kind in (b"subscribe", b"ssubscribe") and due.subscription is not None:
            confirmed = due.subscription.confirmed
            if not confirmed.done():
                confirmed.set_result(None)

    def _refused(self, error: ResponseError) -> None:
        """Of one command: it concerns no other channel."""
        subscription = self._due.popleft().subscription if self._due else None
        if subscription is None:
            raise redis.ConnectionError(f"Redis answers {error}")
        if self._channels.get(subscription.channel) is subscription:
            del self._channels[subscription.channel]
        subscription.refuse(error)

    def _send(self, verb: str, subscription: Subscription | None = None) -> None:
        if self._task is not None:
            self._outgoing.append(_Sent(verb, subscription))
            self._news.set()

    async def _write(self, connection: AbstractConnection) -> None:
        """All commands that have piled up go out together."""
        while True:
            self._news.clear()
            batch, self._outgoing = self._outgoing, []
            if batch:
                self._due.extend(batch)
                packed = connection.pack_commands([sent.words for sent in batch])
                await connection.send_packed_command(packed, check_health=False)
            await self._news.wait()

    async def _watch(self) -> None:
        """A connection that is dead without a word would look like one with nothing to say."""
        while True:
            self._heard = False
            await asyncio.sleep(self._timeout_s)
            if self._heard:
                continue
            self._send("PING")
            await asyncio.sleep(self._timeout_s)
            if not self._heard:
                raise redis.TimeoutError("Redis does not answer")


def _answers(kind: bytes, channel: bytes, due: _Sent) -> bool:
    if kind == b"pong":
        return due.verb == "PING"
    return (
        kind == due.verb.lower().encode()
        and due.subscription is not None
        and channel == due.subscription.channel
    )


def closed() -> BrokerUnavailable:
    return BrokerUnavailable("the client is closed")
