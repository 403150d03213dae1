"""Which running job makes room for one of a higher priority that waits, where all slots are taken.

A job gives its slot up only to one that the queue's order puts before it: of a higher priority, and
due before it with ageing. Between tenants only the classes count that pass. It is handed back as at
a drain, goes on at its next token, here or elsewhere, and not again before it has said some more.
"""

import logging
from collections.abc import Iterable, Sequence

from rose.protocol import EntryKey
from rose_worker.broker import Broker, DueBefore
from rose_worker.jobs import Entry, HeldJob, JobTable
from rose_worker.publisher import Publisher
from rose_worker.settings import WorkerSettings

log = logging.getLogger("rose.intake")

#: A job that has moved already says so many tokens before it makes room again.
_LEAST_TOKENS = 16


class HandBacks:
    def __init__(
        self, settings: WorkerSettings, broker: Broker, table: JobTable, publisher: Publisher
    ) -> None:
        self._most = settings.hand_backs
        self._ageing_ms = int(settings.ageing_s * 1000)
        self._broker = broker
        self._table = table
        self._publisher = publisher

    async def due_before(self) -> DueBefore | None:
        """By when jobs must be due that may have the slot of a running one; None if none may.

        Raises: RedisError
        """
        if not self._most or not self._table.is_full:
            return None
        await self._find_levels()
        jobs = [job for job in self._table.jobs if self._may_move(job)]
        own = [job for job in jobs if not job.lease.of_tenant]
        limits = (*self._limits(own), *self._limits(jobs))
        return limits if any(limits) else None

    def make_room(self, entry: Entry) -> None:
        """Hand a job back for this one, which has been fetched; none if a slot is free by now."""
        if not self._table.exceeded:
            return
        level = entry.level or 1
        due_ms = self._due_ms(entry.key, level)
        jobs = [
            job
            for job in self._table.jobs
            if self._may_move(job) and _level(job) > level
            if self._due_ms(job.lease.entry, _level(job)) > due_ms
        ]
        own = [job for job in jobs if not job.lease.of_tenant]
        if entry.level is not None and own:
            jobs = own
        if jobs:
            # The one that loses least: what is in no cache any more is computed again.
            job = min(jobs, key=lambda job: (-_level(job), job.prompt_tokens + job.logged))
            log.info(
                "job %s is handed back after %d tokens: one of a higher priority waits",
                job.spec.id,
                job.logged,
                extra={"job": job.spec.id},
            )
            self._publisher.hand_back(job)

    async def _find_levels(self) -> None:
        for partition in self._broker.partitions:
            jobs = [job for job in self._table.jobs_of(partition) if job.level is None]
            if jobs:
                levels = await self._broker.levels(partition, [job.spec.id for job in jobs])
                for job, level in zip(jobs, levels, strict=True):
                    job.level = level

    def _may_move(self, job: HeldJob) -> bool:
        said = job.epoch == 1 or job.logged - job.first_index >= _LEAST_TOKENS
        return said and job.epoch <= self._most and not job.alone and job.spec.encode is None

    def _limits(self, jobs: Sequence[HeldJob]) -> tuple[int, int]:
        return self._latest(jobs, above=1), self._latest(jobs, above=2)

    def _latest(self, jobs: Iterable[HeldJob], *, above: int) -> int:
        dues = (self._due_ms(job.lease.entry, _level(job)) for job in jobs if _level(job) > above)
        return max(dues, default=0)

    def _due_ms(self, entry: EntryKey, level: int) -> int:
        return entry.enqueued_ms + (level - 1) * self._ageing_ms


def _level(job: HeldJob) -> int:
    return job.level or 1
