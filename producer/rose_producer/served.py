"""Whether workers serve a client's queue, with as many partitions as it has itself."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rose import transport
from rose.errors import ConfigurationError, MalformedMessage
from rose.protocol import Partition
from rose.protocol.calls import ALIVE_S, queue_status
from rose.protocol.status import read_queue_status

if TYPE_CHECKING:
    from rose_producer.settings import ProducerSettings

log = logging.getLogger("rose.client")

#: A stream that has heard nothing for so long asks whether there is a worker.
SILENT_S = 1.5
_AGAIN_S = 5.0
#: Longer than this no submit waits for the answer.
_ANSWER_S = 1.0


class Served:
    """Asks seldom, however many of a client's streams wait, and warns once."""

    def __init__(self, settings: ProducerSettings, redis: transport.AsyncRedisClient) -> None:
        self._settings = settings
        self._redis = redis
        self._warned = False
        self.places = False
        """Workers are chosen by what they have in their caches, or may be once there are
        several."""
        self._workers_due = self._partitions_due = float("-inf")

    async def warn_if_not(self, partition: Partition) -> None:
        """Log once that no worker lives who would see a job of this partition."""
        if self._warned or time.monotonic() < self._workers_due:
            return
        self._workers_due = time.monotonic() + _AGAIN_S
        try:
            reply = await self._redis.run(queue_status(partition))
            status = read_queue_status(partition.queue, [reply])
        except (*transport.BROKER_ERRORS, MalformedMessage):
            return  # others say so
        alive_ms = ALIVE_S * 1000
        if any(worker.silent_ms < alive_ms for worker in status.by_worker.values()):
            return
        self._warned = True
        log.warning(
            "no worker serves queue %s (partition %d): its jobs wait until one comes. Start one "
            "(rose worker) with the same ROSE_REDIS_URL, ROSE_QUEUE and ROSE_PARTITIONS",
            partition.queue,
            partition.index,
        )

    async def check_partitions(self) -> None:
        """And whether jobs are placed: both may change while a client runs.

        Raises: ConfigurationError: workers have another number of partitions, so that nobody
        would see some of the jobs."""
        if time.monotonic() < self._partitions_due:
            return
        key = Partition(self._settings.queue).model
        announced = places = None
        with suppress(TimeoutError, *transport.BROKER_ERRORS):  # the submit itself says so
            async with asyncio.timeout(_ANSWER_S):
                announced, places = await self._redis.execute(
                    "HMGET", key, "partitions", "placement"
                )
        number = int(announced) if announced is not None and announced.isdigit() else None
        if number not in (None, self._settings.partitions):
            raise ConfigurationError(
                f"ROSE_PARTITIONS is {self._settings.partitions}, and the workers of queue "
                f"{self._settings.queue} have {number}: nobody would see some of the jobs, "
                "set the same number everywhere"
            )
        if number is not None:
            self.places = places is not None
        self._partitions_due = time.monotonic() + _AGAIN_S

    async def dimensions(self) -> int | None:
        """How many numbers an answer of the queue's model has, as its workers announce it.

        Raises: BrokerUnavailable
        """
        key = Partition(self._settings.queue).model
        with transport.broker_errors():
            (announced,) = await self._redis.execute("HMGET", key, "dimensions")
        return int(announced) if announced is not None and announced.isdigit() else None
