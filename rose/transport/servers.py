"""One round trip, on a server and on a cluster: commands in, raw replies out.

`exchange` raises the first error among the replies and repeats nothing. It raises CONNECTION_LOST;
then the commands may have been carried out.
"""

import redis.asyncio

from rose.settings import QueueSettings
from rose.transport.async_cluster import AsyncCluster, open_slots_async
from rose.transport.async_server import AsyncServer, ConnectionLimit
from rose.transport.connection import address_of, connect_async
from rose.transport.redis_internals import async_connector, reply_timeout_s
from rose.transport.urls import Kind

#: Of commands that wait inside Redis each needs a connection.
_UNLIMITED = 10_000


class AsyncPrimary(AsyncServer):
    """One server, or the primary that Sentinels name."""

    def __init__(
        self, client: redis.asyncio.Redis, limit: ConnectionLimit, *, blocking: bool
    ) -> None:
        """`client`: for address and options; its own pool stays empty."""
        pool = client.connection_pool
        super().__init__(async_connector(pool), reply_timeout_s(pool), limit, blocking=blocking)
        self._client = client

    async def aclose(self) -> None:
        await super().aclose()
        await self._client.aclose()


def open_server(
    settings: QueueSettings, reply_timeout_s: float | None, blocking: bool
) -> AsyncServer | AsyncCluster:
    """Raises: ConfigurationError"""
    limit = ConnectionLimit(_UNLIMITED) if blocking else ConnectionLimit()
    if address_of(settings).kind is Kind.CLUSTER:
        timeout_s = reply_timeout_s or settings.redis_timeout_s
        known = open_slots_async(settings, timeout_s)
        return AsyncCluster(known, timeout_s, limit, blocking=blocking)
    client = connect_async(settings, reply_timeout_s=reply_timeout_s)
    return AsyncPrimary(client, limit, blocking=blocking)
