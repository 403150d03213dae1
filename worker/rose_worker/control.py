"""Listens for cancellations.

If a message is lost, the next append finds the flag in the job's state. So after a lost connection
it is enough to subscribe again.
"""

import asyncio
import logging
from dataclasses import dataclass

from rose.protocol import Partition
from rose.transport import BROKER_ERRORS, WORKER, Outage
from rose_worker.broker import Broker
from rose_worker.jobs import JobTable
from rose_worker.metrics import Metrics
from rose_worker.publisher import Publisher

log = logging.getLogger("rose.control")

_LISTEN_S = 5.0


@dataclass(slots=True, eq=False)
class Control:
    _broker: Broker
    _publisher: Publisher
    _table: JobTable
    _metrics: Metrics

    async def run(self) -> None:
        await asyncio.gather(*(self._follow(p) for p in self._broker.partitions))

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
                    # Anybody may publish here. Messages about jobs of other workers are ignored.
                    job_id = self._table.named_by(message.decode(errors="replace"))
                    if job_id is not None:
                        self._publisher.cancel(job_id)
