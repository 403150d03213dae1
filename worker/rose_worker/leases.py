"""Renews the leases of the jobs and claims that this worker holds.

Renewal has a timer of its own, so a long step loses no lease. A step that takes longer than the
stall timeout counts as hung: then the leases lapse, and another worker takes the jobs over.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from rose.protocol import Partition
from rose.transport import BROKER_ERRORS
from rose_worker.broker import Broker
from rose_worker.engine_thread import EngineThread
from rose_worker.jobs import JobTable
from rose_worker.metrics import Metrics
from rose_worker.settings import WorkerSettings

log = logging.getLogger("rose.leases")

#: One renewal may fail and one may be late.
_RENEWALS_PER_LEASE = 3


@dataclass(slots=True, eq=False)
class LeaseKeeper:
    _settings: WorkerSettings
    _broker: Broker
    _thread: EngineThread
    _table: JobTable
    _metrics: Metrics

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / _RENEWALS_PER_LEASE)
            if self._thread.stalled_s > self._settings.stall_timeout_s:
                log.error(
                    "a step has taken %.0f s: %d leases are left to lapse",
                    self._thread.stalled_s,
                    len(self._table),
                )
                continue
            # Each partition by itself: if a cluster node is away, the others keep their leases.
            await asyncio.gather(*(self._renew(p) for p in self._broker.partitions))

    async def _renew(self, partition: Partition) -> None:
        jobs, claims = self._table.jobs_of(partition), self._table.claims_of(partition)
        entries = [job.lease.entry for job in jobs]
        entries += [claim.entry.key for claim in claims]
        try:
            lost = await self._broker.renew(entries)
        except BROKER_ERRORS as error:
            self._metrics.redis_errors["renew"].inc()
            log.warning("leases cannot be renewed: %s", error)
            return
        for job in jobs:
            # The job may have ended, or been taken again, while Redis answered.
            if job.lease.entry in lost and self._table.holds(job):
                self._table.pop(job.spec.id)
                self._thread.abort(job.spec.id)
                log.warning("the lease of job %s is lost", job.spec.id, extra={"job": job.spec.id})
        for claim in claims:
            if claim.entry.key in lost:
                self._table.drop_claim(claim)
