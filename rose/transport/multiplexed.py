"""One connection that carries any number of subscriptions.

When the connection is lost, every listener is told; the next one to listen opens it again, once for
all.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import redis
from hiredis import PushNotification
from redis.exceptions import ResponseError

from rose.errors import ClientClosed
from rose.transport.failures import CONNECTION_LOST, SUBSCRIPTION
from rose.transport.pipeline import IDLE_S, Command, PipelinedConnection, without_errors
from rose.transport.redis_internals import AsyncConnector


class Inbox:
    """The messages of one listener; memory is bounded, since the log has them all."""

    def __init__(self, size: int) -> None:
        self.found: list[Any] | None = None
        """Replies to the commands of `listen`, which Redis has carried out after the subscription.
        None: ask on another connection."""
        self._size = size
        self._messages: deque[bytes] = deque()
        self._overflowed = False
        self._lost: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Set again only when it has fired: nearly always a message comes much earlier.
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0

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
        """The next message. None: read the log; either nothing came for so long, or more
        came than is kept.

        Raises:
            redis.ConnectionError: the subscription is lost; listen again.
        """
        if not (self._messages or self._overflowed or self._lost is not None):
            await self._wait(timeout_s)
        if self._overflowed:
            self._overflowed = False
            return None
        if self._messages:
            return self._messages.popleft()
        if self._lost is not None:
            raise redis.ConnectionError(f"the subscription is lost: {self._lost}")
        return None

    async def is_silent(self, timeout_s: float) -> bool:
        """Whether there is nothing to `get` after so long."""
        if not (self._messages or self._overflowed or self._lost is not None):
            await self._wait(timeout_s)
        return not (self._messages or self._overflowed or self._lost is not None)

    async def _wait(self, timeout_s: float) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        self._wake_after(timeout_s)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def get_ready(self) -> bytes | None:
        """The next message if it is there already, in its turn. None: call `get`."""
        if self._overflowed or not self._messages:
            return None
        return self._messages.popleft()

    def close(self) -> None:
        """Nobody listens any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_after(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + timeout_s
        if self._timer is None or self._timer.when() > self._deadline:
            self.close()
            self._timer = loop.call_at(self._deadline, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._on_timer, loop)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_MESSAGES = (b"message", b"smessage")

#: Asks for RESP3, in which a connection with subscriptions takes other commands, too.
_HELLO: Command = ("HELLO", 3)

#: Reads in flight. Their replies share the buffer in which Redis keeps messages for this
#: connection, and Redis closes a connection of which that is full.
_MAX_OPEN_READS = 32


class SharedAttempt:
    """One attempt for all who wait for it, and a pause after one that failed."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    async def make(self) -> None:
        """Raises: what the work raises."""
        task = self.start()
        await asyncio.wait([task])
        if task.cancelled():
            raise ClientClosed()
        task.result()

    def start(self) -> asyncio.Task[None]:
        """Begin, unless it is under way, and wait for nothing."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            # Nobody may wait for it. Then its error is nobody's: the next attempt follows.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        if self._failures:
            await asyncio.sleep(SUBSCRIPTION.pause_s(self._failures))
        self._failures += 1
        await self._work()
        self._failures = 0


@dataclass(slots=True, eq=False)
class Subscription:
    """One channel, for all who listen to it."""

    channel: bytes
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Redis has confirmed it, or there is an error."""
    error: Exception | None = None
    inboxes: list[Inbox] = field(default_factory=list)

    def refuse(self, error: Exception) -> None:
        if not self.settled.is_set():
            self.error = error
            self.settled.set()


@dataclass(slots=True)
class _SubscriptionCommand:
    """A command whose reply is due; they come in the order of the commands."""

    verb: str
    subscription: Subscription | None = None

    @property
    def commands(self) -> Sequence[Command]:
        return [(self.verb, self.subscription.channel) if self.subscription else (self.verb,)]


@dataclass(slots=True)
class _Read:
    """Commands that concern no subscription, and their replies, which are due in their turn."""

    commands: Sequence[Command]
    done: asyncio.Future[list[Any] | None]
    """None: the connection was lost"""
    replies: list[Any] = field(default_factory=list)

    def end(self, replies: list[Any] | None) -> None:
        if not self.done.done():  # its caller may have given up
            self.done.set_result(replies)


class MultiplexedConnection:
    """`connector` makes a connection that is not open yet. `sharded`: to a node of a cluster."""

    def __init__(self, connector: AsyncConnector, timeout_s: float, *, sharded: bool) -> None:
        self._connector = connector
        self._timeout_s = timeout_s
        self._prefix = "S" if sharded else ""
        self._channels: dict[bytes, Subscription] = {}
        self._connecting = SharedAttempt(self._connect)
        self._connection: PipelinedConnection | None = None
        self._left_at = 0.0
        """when it had its last subscription"""
        self._timer: asyncio.TimerHandle | None = None
        self._outgoing: list[_SubscriptionCommand | _Read] = []
        self._due: deque[_SubscriptionCommand | _Read] = deque()
        self._open_reads = 0
        self._greets = True
        self._greeted: asyncio.Future[Any] | None = None
        """done when HELLO was answered"""
        self._push_type: type[list[Any]] = list
        """of messages and confirmations: a server may accept RESP3 and send lists all the same"""
        self._received = False

    async def subscribe(
        self, channel: str, inbox: Inbox, read: Sequence[Command] = ()
    ) -> Subscription:
        """Returns once Redis has confirmed it, and carried out the commands of `read`, if this
        connection takes them: see `Inbox.found`.

        Raises:
            CONNECTION_LOST, redis.ResponseError
        """
        if self._connection is None:
            await self._connecting.make()
        if self._connection is None:
            raise redis.ConnectionError("the connection was lost at once")
        key = channel.encode()
        subscription = self._channels.get(key)
        if subscription is None:
            subscription = self._channels[key] = Subscription(key)
            self._send(_SubscriptionCommand(f"{self._prefix}SUBSCRIBE", subscription))
        subscription.inboxes.append(inbox)
        replies = self._read_if_open(read)
        try:
            async with asyncio.timeout(self._timeout_s):
                await subscription.settled.wait()
                if replies is not None and subscription.error is None:
                    found = await replies
                    inbox.found = None if found is None else without_errors(found)
        except TimeoutError:
            self.leave(subscription, inbox)
            raise redis.TimeoutError("no confirmation of the subscription") from None
        except BaseException:
            self.leave(subscription, inbox)
            raise
        if subscription.error is not None:
            self.leave(subscription, inbox)
            raise subscription.error
        return subscription

    def leave(self, subscription: Subscription, inbox: Inbox) -> None:
        """The last listener ends the subscription. Does not wait for Redis to confirm that."""
        if inbox in subscription.inboxes:
            subscription.inboxes.remove(inbox)
        current = self._channels.get(subscription.channel)
        if current is subscription and not subscription.inboxes:
            del self._channels[subscription.channel]
            self._left_at = asyncio.get_running_loop().time()
            self._send(_SubscriptionCommand(f"{self._prefix}UNSUBSCRIBE", subscription))

    async def close(self) -> None:
        await self._connecting.cancel()
        self._end("closed")

    async def _connect(self) -> None:
        if self._connection is None:
            connection = PipelinedConnection(
                self._on_reply, lambda why: self._lose(connection, why)
            )
            await connection.open(self._connector(), self._timeout_s)
            self._connection, self._push_type = connection, list
            if self._greets:
                self._greeted = self._read([_HELLO])
            self._received = True
            self._left_at = asyncio.get_running_loop().time()
            self._check_alive()

    def _end(self, reason: str) -> None:
        """Nobody gets it any more."""
        if self._connection is not None:
            self._connection.close()
            self._lose(self._connection, reason)

    def _lose(self, connection: PipelinedConnection, reason: str) -> None:
        if connection is not self._connection:
            return
        lost = list(self._channels.values())
        unanswered = (*self._due, *self._outgoing)
        self._connection, self._open_reads = None, 0
        # A proxy may close the connection at a command that it does not know.
        self._greets = self._greeted is None or self._greeted.done()
        if self._timer is not None:
            self._timer.cancel()
        self._channels.clear()
        self._outgoing.clear()
        self._due.clear()
        for subscription in lost:
            subscription.refuse(redis.ConnectionError(f"the connection is lost: {reason}"))
            for inbox in subscription.inboxes:
                inbox.lose(reason)
        for one in unanswered:
            if isinstance(one, _Read):
                one.end(None)

    def _on_reply(self, reply: Any) -> None:
        self._received = True
        if type(reply) is PushNotification:
            self._push_type = PushNotification
        is_push = type(reply) is self._push_type
        if is_push and reply[0] in _MESSAGES:
            self._deliver(reply[1], reply[2])
        elif not is_push and self._due and isinstance(read := self._due[0], _Read):
            self._answer(read, reply)
        elif isinstance(reply, CONNECTION_LOST):
            raise reply
        elif isinstance(reply, ResponseError):
            self._refused(reply)
        else:
            self._accept(reply)

    def _deliver(self, channel: bytes, message: bytes) -> None:
        subscription = self._channels.get(channel)
        if subscription is not None:
            for inbox in subscription.inboxes:
                inbox.put(message)

    def _answer(self, read: _Read, reply: Any) -> None:
        read.replies.append(reply)
        if len(read.replies) == len(read.commands):
            self._due.popleft()
            self._open_reads -= 1
            read.end(read.replies)

    def _accept(self, reply: Any) -> None:
        due = self._due[0] if self._due else None
        if not isinstance(reply, list):  # a PONG: in RESP3, or without subscriptions
            reply = [b"pong", reply]
        kind, channel, *_ = reply
        if not isinstance(due, _SubscriptionCommand) or not _answers(kind, channel, due):
            # A cluster ends the subscriptions of a slot that moves to another node.
            raise redis.ConnectionError("Redis has ended a subscription")
        self._due.popleft()
        if kind in (b"subscribe", b"ssubscribe") and due.subscription is not None:
            due.subscription.settled.set()

    def _refused(self, error: ResponseError) -> None:
        """Of one command: it concerns no other channel."""
        due = self._due.popleft() if self._due else None
        subscription = due.subscription if isinstance(due, _SubscriptionCommand) else None
        if subscription is None:
            raise redis.ConnectionError(f"Redis answers {error}")
        if self._channels.get(subscription.channel) is subscription:
            del self._channels[subscription.channel]
        subscription.refuse(error)

    def _read_if_open(self, commands: Sequence[Command]) -> asyncio.Future[list[Any] | None] | None:
        """Sends them behind what was sent before. None: this connection does not take them."""
        if not commands or self._push_type is list or self._open_reads >= _MAX_OPEN_READS:
            return None
        return self._read(commands)

    def _read(self, commands: Sequence[Command]) -> asyncio.Future[list[Any] | None]:
        self._open_reads += 1
        done = asyncio.get_running_loop().create_future()
        self._send(_Read(commands, done))
        return done

    def _send(self, sent: _SubscriptionCommand | _Read) -> None:
        if self._connection is None:
            return
        if not self._outgoing:  # one write sends all commands of a turn of the event loop
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(sent)

    def _flush(self) -> None:
        batch, self._outgoing = self._outgoing, []
        if batch and self._connection is not None:
            self._due.extend(batch)
            self._connection.send([words for sent in batch for words in sent.commands])

    def _check_alive(self, *, pinged: bool = False) -> None:
        """Ping a silent connection: it may be dead. Close one that nobody needs."""
        loop = asyncio.get_running_loop()
        if pinged and not self._received:
            self._end("Redis does not answer")
            return
        if not self._channels and loop.time() - self._left_at >= IDLE_S:
            self._end("idle")
            return
        silent, self._received = not self._received, False
        if silent:
            self._send(_SubscriptionCommand("PING"))
        self._timer = loop.call_later(self._timeout_s, partial(self._check_alive, pinged=silent))


def _answers(kind: bytes, channel: bytes, due: _SubscriptionCommand) -> bool:
    if kind == b"pong":
        return due.verb == "PING"
    return (
        kind == due.verb.lower().encode()
        and due.subscription is not None
        and channel == due.subscription.channel
    )
