"""Keeps what this worker works on, and only that.

Renewal runs on a timer of its own, so a long step or prefill loses nothing; but a step that takes
longer than the stall timeout counts as hung, and then the leases are left to lapse, so that
another worker can take the jobs over.
"""

from __future__ import annotations

import asyncio
import logging

from rose.protocol import Partition
from rose.transport import BROKER_ERRORS
from rose_worker.broker import Broker
from rose_worker.engine_thread import EngineThread
from rose_worker.jobs import JobTable
from rose_worker.logs import about
from rose_worker.metrics import Metrics
from rose_worker.settings import WorkerSettings

log = logging.getLogger("rose.leases")

#: Renewals per lease: one may fail, and one come late.
_PER_LEASE = 3


class LeaseKeeper:
    def __init__(
        self,
        settings: WorkerSettings,
        broker: Broker,
        thread: EngineThread,
        table: JobTable,
        metrics: Metrics,
    ) -> None:
        self._interval_s = settings.lease_s / _PER_LEASE
        self._stall_timeout_s = settings.stall_timeout_s
        self._broker = broker
        self._thread = thread
        self._table = table
        self._metrics = metrics

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self._thread.stalled_s > self._stall_timeout_s:
                log.error(
                    "a step has taken %.0f s: %d leases are left to lapse",
                    self._thread.stalled_s,
                    len(self._table),
                )
                continue
            # Each on its own: a node of a cluster that is away costs no other's leases.
            await asyncio.gather(*(self._renew(p) for p in self._broker.partitions))

    async def _renew(self, partition: Partition) -> None:
        jobs, claims = self._table.jobs_of(partition), self._table.claims_of(partition)
        entries = [job.lease.entry for job in jobs]
        entries += [claim.entry.key for claim in claims]
        try:
            lost = await self._broker.renew(entries)
        except BROKER_ERRORS as error:
            self._metrics.redis_error("renew")
            log.warning("leases cannot be renewed: %s", error)
            return
        for job in jobs:
            # It may have ended, or been taken anew, while Redis answered.
            if job.lease.entry in lost and self._table.holds(job):
                self._table.pop(job.spec.id)
                self._thread.abort(job.spec.id)
                log.warning("the lease of job %s is lost", job.spec.id, extra=about(job.spec.id))
        for claim in claims:
            if claim.entry.key in lost:
                self._table.drop_claim(claim)
