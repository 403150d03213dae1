"""What one worker reads and cleans up for all: the queue's status, and consumers of killed
workers."""

import time
from collections.abc import Sequence

from redis.exceptions import OutOfMemoryError

from rose.protocol import ASIDE, GROUP, RELEASED, Partition, Priority, calls
from rose.protocol.calls import Swept
from rose.protocol.keys import QUEUES
from rose.protocol.status import QueueStatus, read_queue_status
from rose.protocol.tenants import TenantsStatus, read_tenants
from rose.transport import AsyncRedisClient, field_of

#: A consumer that holds nothing and has been silent for so long is deleted. The worker looks for
#: such consumers as often.
_FORGET_S = 3600


class QueueReader:
    """Part of the broker, whose connection it uses. Calls raise RedisError."""

    def __init__(self, redis: AsyncRedisClient, queue: str, consumer: str, ttl_s: int) -> None:
        self._redis = redis
        self._queue = queue
        self._consumer = consumer
        self._ttl_s = ttl_s
        self._forget_due = 0.0

    async def forget_dead_consumers(self, partitions: Sequence[Partition]) -> None:
        """Delete the consumers that killed workers have left behind. Most calls do nothing: the
        worker looks once per `_FORGET_S`."""
        if time.monotonic() < self._forget_due:
            return
        self._forget_due = time.monotonic() + _FORGET_S
        idle_ms = _FORGET_S * 1000
        await self._redis.run_many([calls.forget(p, idle_ms=idle_ms) for p in partitions])

    async def sweep(
        self, partition: Partition, positions: Sequence[bytes], again_s: float
    ) -> Swept:
        """Raises: RedisError, MalformedMessage"""
        call = calls.sweep(partition, positions, again_s=again_s, ttl_s=self._ttl_s)
        return calls.swept(partition, await self._redis.run(call))

    async def is_full(self, partition: Partition) -> bool:
        """Whether Redis is at its memory limit and refuses new jobs."""
        try:
            await self._redis.run(calls.room(partition))
        except OutOfMemoryError:
            return True
        return False

    async def lost_workers(self, partition: Partition) -> int:
        """The number of workers that have been silent long enough to be dead, and are not yet
        deleted.

        A draining worker deletes its name; that of a killed one stays.
        """
        stream = partition.jobs(Priority.NORMAL)
        consumers = await self._redis.execute("XINFO", "CONSUMERS", stream, GROUP)
        return sum(
            int(field_of(one, b"idle") or 0) >= calls.ALIVE_S * 1000
            for one in consumers
            if field_of(one, b"name") not in (ASIDE.encode(), RELEASED.encode())
        )

    async def elect(self, partition: Partition, lease_s: float) -> bool:
        """Whether this worker reads the queue's gauges for all workers. A lease of 0 resigns."""
        call = calls.elect(partition, self._consumer, lease_ms=int(lease_s * 1000))
        return bool(await self._redis.run(call))

    async def oldest_waiting_ms(self, partitions: Sequence[Partition]) -> int | None:
        """When the oldest unread job was enqueued, in Unix milliseconds."""
        replies = await self._redis.run_many([calls.oldest_waiting(p) for p in partitions])
        entries = [entry for reply in replies for entry in reply if entry]
        return min((int(entry.partition(b"-")[0]) for entry in entries), default=None)

    async def list_queue(self, partitions: int) -> None:
        """So that `rose status --all` finds it."""
        await self._redis.execute("HSET", QUEUES, self._queue, partitions)

    async def tenants(self, partitions: Sequence[Partition], top: int) -> TenantsStatus:
        """The `top` tenants with the most jobs that have not ended, and all of them together.

        Raises: RedisError, MalformedMessage
        """
        replies = await self._redis.run_many([calls.tenant_status(p, top=top) for p in partitions])
        return read_tenants((), replies)

    async def status(self, partitions: Sequence[Partition]) -> QueueStatus:
        """Of these partitions together."""
        replies = await self._redis.run_many([calls.queue_status(p) for p in partitions])
        return read_queue_status(partitions[0].queue, replies)
