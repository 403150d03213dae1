"""Subscriptions of an asyncio client, on one connection (on a cluster: one to each node).

    subscriptions = AsyncSubscriptions(settings)
    async with subscriptions.listen(channel) as inbox:
        message = await inbox.get(timeout_s=5)

A message published after `listen` has returned is either delivered, or its loss is reported: by
CONNECTION_LOST, or by None, which means: read the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio

from rose.settings import QueueSettings
from rose.transport.connection import connect_async
from rose.transport.failures import CONNECTION_LOST, closed
from rose.transport.multiplexed import Inbox, MultiplexedConnection, SharedAttempt
from rose.transport.redis_internals import (
    AsyncConnector,
    async_connector,
    async_node,
    find_nodes_async,
)

#: Messages kept for a listener that does not keep up.
_INBOX_SIZE = 1000

#: Thousands of listeners may have lost the same node.
_EXPLORE_EVERY_S = 0.5


class AsyncSubscriptions:
    """Belongs to one event loop. Connects at the first `listen`; `aclose` ends it for good."""

    def __init__(self, settings: QueueSettings, *, inbox_size: int = _INBOX_SIZE) -> None:
        # For address and options: its own pool stays empty.
        # No silent reconnect: what was published meanwhile must be read from the log.
        self._redis = connect_async(settings)
        self._timeout_s = settings.redis_timeout_s
        self._inbox_size = inbox_size
        self._connections: dict[str, MultiplexedConnection] = {}
        self._exploring = SharedAttempt(self._explore)
        self._explored = False
        self._explored_at = -_EXPLORE_EVERY_S
        self._closed = False

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncIterator[Inbox]:
        """Subscribed, and confirmed by Redis, while the context lasts. Any number may listen to
        the same channel.

        Raises:
            CONNECTION_LOST: try again; how often and how fast is the caller's, but however many
                callers there are, they try together.
            redis.ResponseError, BrokerUnavailable (closed)
        """
        inbox = Inbox(self._inbox_size)
        try:
            connection = await self._connection(channel)
            subscription = await connection.subscribe(channel, inbox)
        except CONNECTION_LOST:
            self._explored = False  # the channel's node may be another now
            raise
        try:
            yield inbox
        except CONNECTION_LOST:
            self._explored = False
            raise
        finally:
            connection.leave(subscription, inbox)

    async def aclose(self) -> None:
        self._closed = True
        await self._exploring.cancel()
        for connection in self._connections.values():
            await connection.close()
        await self._redis.aclose()

    async def _connection(self, channel: str) -> MultiplexedConnection:
        if self._closed:
            raise closed()
        client = self._redis
        if isinstance(client, redis.asyncio.Redis):
            return self._connection_to("", async_connector(client.connection_pool))
        recently = asyncio.get_running_loop().time() - self._explored_at < _EXPLORE_EVERY_S
        if not self._explored and not recently:
            await self._exploring.make()
        return self._connection_to(*async_node(client, channel))

    def _connection_to(self, node: str, connector: AsyncConnector) -> MultiplexedConnection:
        connection = self._connections.get(node)
        if connection is None:
            connection = MultiplexedConnection(connector, self._timeout_s, sharded=bool(node))
            self._connections[node] = connection
        return connection

    async def _explore(self) -> None:
        if isinstance(self._redis, redis.asyncio.RedisCluster):
            await find_nodes_async(self._redis)
        self._explored, self._explored_at = True, asyncio.get_running_loop().time()
