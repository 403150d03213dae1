"""Subscriptions of an asyncio client, on one connection (on a cluster: one to each node).

    subscriptions = AsyncSubscriptions(settings)
    async with subscriptions.listen(channel) as inbox:
        message = await inbox.get(timeout_s=5)

A message published after `listen` has returned is either delivered, or its loss is reported: by
CONNECTION_LOST, or by None, which means: read the log.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import redis.asyncio

from rose.errors import ClientClosed
from rose.settings import QueueSettings
from rose.transport.async_cluster import AsyncSlots, open_slots_async
from rose.transport.connection import address_of, connect_async
from rose.transport.event_loop import LoopGuard
from rose.transport.failures import CONNECTION_LOST, Closable
from rose.transport.multiplexed import Inbox, MultiplexedConnection
from rose.transport.pipeline import Command
from rose.transport.redis_internals import AsyncConnector, async_connector
from rose.transport.slots import Node, doubt, slot_of_key
from rose.transport.urls import Kind

#: Messages kept for a listener that does not keep up.
_INBOX_SIZE = 1000


class AsyncSubscriptions(Closable):
    """Belongs to one event loop. Connects at the first `listen`; `aclose` ends it for good."""

    def __init__(self, settings: QueueSettings, *, inbox_size: int = _INBOX_SIZE) -> None:
        self._slots: AsyncSlots | None = None
        self._redis: redis.asyncio.Redis | None = None
        if address_of(settings).kind is Kind.CLUSTER:
            self._slots = open_slots_async(settings, settings.redis_timeout_s)
        else:
            # For address and options: its own pool stays empty.
            self._redis = connect_async(settings)
        self._timeout_s = settings.redis_timeout_s
        self._inbox_size = inbox_size
        self._connections: dict[Node | None, MultiplexedConnection] = {}
        self._loop_guard = LoopGuard()

    @asynccontextmanager
    async def listen(self, channel: str, read: Sequence[Command] = ()) -> AsyncIterator[Inbox]:
        """Subscribed, and confirmed by Redis, while the context lasts. Any number may listen to
        the same channel. `read`: what to ask for with it, on keys of the channel's slot; the
        replies, unless they are None, are in `Inbox.found`.

        Raises:
            CONNECTION_LOST: try again; how often and how fast is the caller's, but however many
                callers there are, they try together.
            redis.ResponseError, BrokerUnavailable (closed), WrongEventLoop
        """
        self._loop_guard.check()
        inbox = Inbox(self._inbox_size)
        try:
            connection = await self._connection(channel)
            subscription = await connection.subscribe(channel, inbox, read)
        except CONNECTION_LOST as error:
            doubt(self._slots, error)
            raise
        try:
            yield inbox
        except CONNECTION_LOST as error:
            doubt(self._slots, error)
            raise
        finally:
            inbox.close()
            connection.leave(subscription, inbox)

    async def aclose(self) -> None:
        self._closed = True
        if not self._loop_guard.is_here():
            return  # nothing is open, or it went with its event loop
        if self._slots is not None:
            await self._slots.aclose()
        for connection in self._connections.values():
            await connection.close()
        if self._redis is not None:
            await self._redis.aclose()

    async def _connection(self, channel: str) -> MultiplexedConnection:
        self._check_open()
        node = None if self._slots is None else await self._slots.node_of(slot_of_key(channel))
        connection = self._connections.get(node)
        if connection is None:
            sharded = node is not None
            connection = MultiplexedConnection(
                self._connector(node), self._timeout_s, sharded=sharded
            )
            self._connections[node] = connection
        return connection

    def _connector(self, node: Node | None) -> AsyncConnector:
        if self._slots is not None and node is not None:
            return self._slots.connector(node)
        if self._redis is None:
            raise ClientClosed()
        return async_connector(self._redis.connection_pool)
