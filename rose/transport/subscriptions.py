"""Subscriptions of a blocking client: one connection for each listener, kept for the next one.

    with subscriptions.listen(channel) as inbox:
        message = inbox.get(timeout_s=5)

The blocking form of `rose.transport.async_subscriptions`. No thread reads for another: each
listener has a connection while it listens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import redis
from redis.connection import AbstractConnection

from rose.settings import QueueSettings
from rose.transport.blocking_pool import IdleConnections
from rose.transport.cluster import Slots, open_slots
from rose.transport.connection import address_of, connect
from rose.transport.failures import CONNECTION_LOST, Closable
from rose.transport.pipeline import Command
from rose.transport.redis_internals import Connector, connector, open_blocking, read_reply
from rose.transport.slots import Node, doubt, slot_of_key
from rose.transport.urls import Kind


class BlockingInbox:
    """A connection with one subscription at most, and the messages of it."""

    found: None = None
    """It asks for nothing with its subscription."""

    def __init__(self, connection: AbstractConnection, timeout_s: float, *, sharded: bool) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._prefix = "S" if sharded else ""
        self._channel = b""
        self._pinged_at: float | None = None
        self.in_step = True
        """False: it stopped halfway through sending or reading and cannot be used any more"""

    def get_ready(self) -> bytes | None:
        """None: call `get`. To look whether more has come would cost a system call an event."""
        return None

    def subscribe(self, channel: str) -> None:
        """Returns once Redis has confirmed it. Raises: CONNECTION_LOST"""
        self._channel, self._pinged_at = channel.encode(), None
        self._send("SUBSCRIBE")
        # Replies to an earlier listener may come first.
        while self._read() != [f"{self._prefix}SUBSCRIBE".lower().encode(), self._channel]:
            continue

    def unsubscribe(self) -> None:
        """Does not wait for Redis to confirm that."""
        self._send("UNSUBSCRIBE")

    def get(self, timeout_s: float) -> bytes | None:
        """The next message; None: nothing came for so long. Raises: CONNECTION_LOST"""
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            if not self._connection.can_read(max(0.0, left)):
                self._probe()
                return None
            message = self._read(whole=True)
            if message[0] in (b"message", b"smessage") and message[1] == self._channel:
                data: bytes = message[2]
                return data
            if message[0] == b"sunsubscribe":
                raise redis.ConnectionError("the cluster has ended the subscription")

    def close(self) -> None:
        self._connection.disconnect()

    def _probe(self) -> None:
        """Ping a silent connection: it may be dead."""
        now = time.monotonic()
        if self._pinged_at is None:
            self._send("PING")
            self._pinged_at = now
        elif now - self._pinged_at > self._timeout_s:
            raise redis.TimeoutError("Redis does not answer")

    def _send(self, verb: str) -> None:
        self.in_step = False
        if verb == "PING":
            self._connection.send_command(verb, check_health=False)
        else:
            self._connection.send_command(self._prefix + verb, self._channel, check_health=False)
        self.in_step = True

    def _read(self, *, whole: bool = False) -> list[Any]:
        """Of a confirmation the kind and the channel, unless it is wanted whole."""
        self.in_step = False
        reply = read_reply(self._connection)
        self.in_step = True
        self._pinged_at = None
        message = reply if isinstance(reply, list) else [b"pong", reply]
        return message if whole else message[:2]


class Subscriptions(Closable):
    """Thread-safe. Connects at the first `listen`."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._slots: Slots | None = None
        if address_of(settings).kind is Kind.CLUSTER:
            self._slots = open_slots(settings, settings.redis_timeout_s)
        self._idle: dict[Node | None, IdleConnections[BlockingInbox]] = {}

    @contextmanager
    def listen(self, channel: str, read: Sequence[Command] = ()) -> Iterator[BlockingInbox]:  # noqa: ARG002
        """Subscribed, and confirmed by Redis, while the context lasts. `read` is not sent.

        Raises:
            BrokerUnavailable: it is closed.
            CONNECTION_LOST, redis.ResponseError
        """
        self._check_open()
        try:
            node, connector = self._node(channel)
            inbox = self._subscribed(node, connector, channel)
        except CONNECTION_LOST as error:
            doubt(self._slots, error)
            raise
        try:
            yield inbox
        except CONNECTION_LOST as error:
            inbox.in_step = False
            doubt(self._slots, error)
            raise
        finally:
            self._give_back(node, inbox)

    def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            idle.close()
        if self._slots is not None:
            self._slots.close()
        if "_redis" in vars(self):
            self._redis.close()

    @cached_property
    def _redis(self) -> redis.Redis:
        # For address and options: its own pool stays empty.
        # No silent reconnect: what was published meanwhile must be read from the log.
        client: Any = connect(self._settings)
        primary: redis.Redis = client
        return primary

    def _subscribed(self, node: Node | None, connector: Connector, channel: str) -> BlockingInbox:
        while (inbox := self._idle_at(node).take()) is not None:
            try:
                inbox.subscribe(channel)
            except CONNECTION_LOST:  # while it was idle, perhaps: try with the next
                inbox.close()
            else:
                return inbox
        connection = connector()
        inbox = BlockingInbox(connection, self._settings.redis_timeout_s, sharded=node is not None)
        try:
            open_blocking(connection)
            inbox.subscribe(channel)
        except BaseException:
            inbox.close()
            raise
        return inbox

    def _idle_at(self, node: Node | None) -> IdleConnections[BlockingInbox]:
        idle = self._idle.get(node)
        if idle is None:
            idle = self._idle.setdefault(node, IdleConnections(BlockingInbox.close))
        return idle

    def _give_back(self, node: Node | None, inbox: BlockingInbox) -> None:
        if inbox.in_step:
            try:
                inbox.unsubscribe()
            except CONNECTION_LOST as error:
                doubt(self._slots, error)
            else:
                self._idle_at(node).keep(inbox)
                return
        inbox.close()

    def _node(self, channel: str) -> tuple[Node | None, Connector]:
        """None where there is no cluster; and how to make a connection to it."""
        if self._slots is not None:
            node = self._slots.node_of(slot_of_key(channel))
            return node, connector(self._slots.client_of(node).connection_pool)
        return None, connector(self._redis.connection_pool)
