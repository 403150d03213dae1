"""The statuses of the queues, cached for half a second."""

import asyncio
import time
from collections.abc import Mapping

from rose.protocol.status import QueueStatus
from rose_producer import AsyncClient

#: A queue's status is read no more often than this, however many clients ask for it.
_FRESH_S = 0.5


class QueueStatuses:
    """Belongs to one event loop."""

    def __init__(self, clients: Mapping[str, AsyncClient]) -> None:
        """`clients`: by queue."""
        self._clients = clients
        self._locks = {queue: asyncio.Lock() for queue in clients}
        self._read: dict[str, tuple[float, QueueStatus]] = {}

    async def all(self) -> list[QueueStatus]:
        """Raises: BrokerUnavailable, MalformedMessage"""
        return list(await asyncio.gather(*map(self._of, self._clients)))

    async def _of(self, queue: str) -> QueueStatus:
        async with self._locks[queue]:
            read_at, status = self._read.get(queue, (float("-inf"), None))
            if status is None or time.monotonic() - read_at > _FRESH_S:
                status = await self._clients[queue].queue_status()
                self._read[queue] = time.monotonic(), status
            return status
