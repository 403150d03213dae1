"""Listens for cancellations.

A message only says that there may be something to do, since anybody may publish: the flag in the
job's state decides. If a message is lost, the next append finds that flag. So after a lost
connection it is enough to subscribe again. A job whose answer is one event has no append before its
end: its flag is looked at now and then.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from rose.protocol import Partition
from rose.protocol.calls import control_message
from rose.transport import BROKER_ERRORS, WORKER, Outage
from rose_worker.broker import Broker
from rose_worker.jobs import JobTable
from rose_worker.metrics import Metrics
from rose_worker.publisher import Publisher

log = logging.getLogger("rose.control")

_LISTEN_S = 5.0

#: How often the flag of a job without tokens is looked at.
_LOOK_S = 2.0


@dataclass(slots=True, eq=False)
class Control:
    _broker: Broker
    _publisher: Publisher
    _table: JobTable
    _metrics: Metrics

    async def run(self) -> None:
        parts = [part(p) for p in self._broker.partitions for part in (self._follow, self._check)]
        await asyncio.gather(*parts)

    async def _follow(self, partition: Partition) -> None:
        outage = Outage(WORKER)
        while True:
            try:
                await self._listen(partition, outage)
            except BROKER_ERRORS as error:
                self._metrics.redis_errors["control"].inc()
                log.warning("control waits for Redis: %s", error)
                await asyncio.sleep(outage.next_pause_s(error))

    async def _listen(self, partition: Partition, outage: Outage) -> None:
        async with self._broker.subscriptions.listen(partition.control) as inbox:
            outage.end()
            while True:
                message = await inbox.get(_LISTEN_S)
                if message is not None:
                    await self._look(partition, message.decode(errors="replace"))

    async def _check(self, partition: Partition) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for job in self._table.jobs_of(partition):
                if job.spec.encode is None or time.monotonic() - job.taken_at < _LOOK_S:
                    continue
                try:
                    await self._look(partition, control_message(job.spec.id))
                except BROKER_ERRORS:
                    self._metrics.redis_errors["control"].inc()
                    break

    async def _look(self, partition: Partition, message: str) -> None:
        """Messages about jobs of other workers are ignored."""
        job = self._table.named_by(message)
        if job is None or not await self._broker.cancel_requested(partition, job.spec.id):
            return
        if self._table.holds(job):  # it may have ended, or been taken again, meanwhile
            self._publisher.cancel(job.spec.id)
