"""Renews the leases of the jobs and claims that this worker holds.

Renewal has timers of its own, one for each partition, so neither a long step nor a silent node of a
cluster costs the leases of others. A step that takes longer than the stall timeout counts as hung:
then the leases lapse, and another worker takes the jobs over.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from rose.protocol import Partition
from rose.transport import BROKER_ERRORS, WORKER, Outage
from rose_worker.broker import Broker
from rose_worker.engine import EngineThread
from rose_worker.jobs import JobTable
from rose_worker.metrics import Metrics
from rose_worker.publisher import Publisher
from rose_worker.settings import WorkerSettings

log = logging.getLogger("rose.leases")

#: One renewal may fail and one may be late.
_RENEWALS_PER_LEASE = 3


@dataclass(slots=True, eq=False)
class LeaseKeeper:
    _settings: WorkerSettings
    _broker: Broker
    _thread: EngineThread
    _publisher: Publisher
    _table: JobTable
    _metrics: Metrics

    async def run(self) -> None:
        await asyncio.gather(*(self._keep(partition) for partition in self._broker.partitions))

    async def _keep(self, partition: Partition) -> None:
        period_s = self._settings.lease_s / _RENEWALS_PER_LEASE
        outage, logged_at = Outage(WORKER), -period_s
        pause_s = period_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = period_s
            if self._thread.stalled_s > self._settings.stall_timeout_s:
                self._let_lapse(partition)
                continue
            try:
                await self._renew(partition)
                outage.end()
            except BROKER_ERRORS as error:
                pause_s = min(period_s, outage.next_pause_s(error))
                self._metrics.redis_errors["renew"].inc()
                if time.monotonic() - logged_at >= period_s:
                    logged_at = time.monotonic()
                    log.warning(
                        "the leases of partition %d cannot be renewed: %s", partition.index, error
                    )

    def _let_lapse(self, partition: Partition) -> None:
        if jobs := self._table.jobs_of(partition):
            log.error(
                "a step has taken %.0f s: %d leases of partition %d are left to lapse",
                self._thread.stalled_s,
                len(jobs),
                partition.index,
            )

    async def _renew(self, partition: Partition) -> None:
        """Raises: BROKER_ERRORS"""
        jobs, claims = self._table.jobs_of(partition), self._table.claims_of(partition)
        entries = [job.lease.entry for job in jobs]
        entries += [claim.entry.key for claim in claims]
        lost = await self._broker.renew(entries)
        for job in jobs:
            if job.lease.entry in lost:
                self._publisher.lose_lease(job)
        for claim in claims:
            if claim.entry.key in lost:
                self._table.drop_claim(claim)
