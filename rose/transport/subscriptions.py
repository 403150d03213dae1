"""All that one asyncio client listens to, on one connection (on a cluster: one to each node).

    subscriptions = AsyncSubscriptions(settings)
    async with subscriptions.listen(channel) as inbox:
        message = await inbox.get(timeout_s=5)

What is published after `listen` has returned is either got, or the loss of it is told: by
CONNECTION_LOST, or by None, which says: look into the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import SlotNotCoveredError

from rose.settings import QueueSettings
from rose.transport.connection import CONNECTION_LOST, connect_async
from rose.transport.line import Attempt, Inbox, Line, closed
from rose.transport.wire import opener

#: Messages kept for a listener that does not keep up.
_INBOX_SIZE = 1000

#: Thousands of listeners may have lost the same node.
_EXPLORE_EVERY_S = 0.5


class AsyncSubscriptions:
    """Belongs to one event loop. Connects at the first `listen`; `aclose` ends it for good."""

    def __init__(self, settings: QueueSettings, *, inbox_size: int = _INBOX_SIZE) -> None:
        # Knows the way; its own pool stays empty.
        # No silent reconnect: what was published meanwhile must be read from the log.
        self._redis = connect_async(settings, retries=0)
        self._timeout_s = settings.redis_timeout_s
        self._inbox_size = inbox_size
        self._lines: dict[str, Line] = {}
        self._exploring = Attempt(self._explore)
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
            line = await self._line(channel)
            subscription = await line.subscribe(channel, inbox)
        except CONNECTION_LOST:
            self._explored = False  # the channel's node may be another now
            raise
        try:
            yield inbox
        except CONNECTION_LOST:
            self._explored = False
            raise
        finally:
            line.leave(subscription, inbox)

    async def aclose(self) -> None:
        self._closed = True
        await self._exploring.cancel()
        for line in self._lines.values():
            await line.close()
        await self._redis.aclose()

    async def _line(self, channel: str) -> Line:
        if self._closed:
            raise closed()
        client = self._redis
        if isinstance(client, redis.asyncio.Redis):
            return self._line_to("", opener(client.connection_pool))
        recently = asyncio.get_running_loop().time() - self._explored_at < _EXPLORE_EVERY_S
        if not self._explored and not recently:
            await self._exploring.make()
        node = client.get_node_from_key(channel)
        if node is None:
            raise SlotNotCoveredError(f"no node of the cluster serves {channel}")
        return self._line_to(node.name, opener(node))

    def _line_to(self, name: str, open_connection: Callable[[], AbstractConnection]) -> Line:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(open_connection, self._timeout_s, sharded=bool(name))
        return line

    async def _explore(self) -> None:
        """Ask the cluster anew which node serves what."""
        client: Any = self._redis
        await client.aclose()
        await client.initialize()
        self._explored, self._explored_at = True, asyncio.get_running_loop().time()
