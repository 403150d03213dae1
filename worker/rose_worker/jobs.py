"""The jobs this worker holds, and the entries that it is about to begin on.

    Redis -- fetch, reclaim --> claims -- take --> jobs -- last token --> gone

Both fill slots and both keep their leases; only a job has an epoch and may append.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rose.protocol import EntryKey, JobEntry, JobSpec, Partition, readable_job_id
from rose.protocol.calls import Lease, Taken
from rose_worker.broker import Entry


@dataclass(slots=True, eq=False)
class Claim:
    """An entry that this worker owns, on its way to become a job."""

    entry: Entry
    spec: JobSpec | None = None
    """once it has been decoded"""
    grant: Taken | None = None
    """once it has been taken"""
    suspect: bool = False
    """The last worker died on it without a new token: it must be taken alone."""

    @property
    def size(self) -> int:
        """Bytes of the job as it came."""
        return len(self.entry.raw or b"")


@dataclass(slots=True, eq=False)
class HeldJob:
    """A job between take and its last token. Times are of the monotonic clock, in seconds."""

    spec: JobSpec
    lease: Lease
    logged: int
    """Tokens in the log, or on their way there: the index of the next one."""
    prompt_tokens: int
    enqueued_at: float
    resumed: bool
    """Another worker, or this one before, has begun on it."""
    first_index: int = 0
    """Tokens that were in the log when it was taken."""
    alone: bool = False
    """A suspect: nothing else is begun before it has a new token in its log."""
    taken_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    """of this worker's"""
    last_token_at: float | None = None
    deadline: asyncio.TimerHandle | None = None


class JobTable:
    """Every held job by id. Holding one is what renews its lease and accepts its tokens."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._claims: dict[EntryKey, Claim] = {}
        self._reserved = 0
        self._jobs: dict[str, HeldJob] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: str) -> HeldJob | None:
        return self._jobs.get(job_id)

    def holds(self, job: HeldJob) -> bool:
        """It, and not another life of the same job."""
        return self._jobs.get(job.spec.id) is job

    def jobs_of(self, partition: Partition) -> list[HeldJob]:
        return [job for job in self._jobs.values() if job.lease.partition == partition]

    def entries_of(self, partition: Partition) -> list[JobEntry]:
        """What this worker owns there: jobs and claims. A job id that cannot be read stands for
        none."""
        held = [JobEntry(job.lease.entry, job.spec.id) for job in self.jobs_of(partition)]
        return held + [
            JobEntry(claim.entry.key, readable_job_id(claim.entry.raw or b"") or "unreadable")
            for claim in self.claims_of(partition)
        ]

    def claims_of(self, partition: Partition) -> list[Claim]:
        """Oldest first."""
        return [claim for claim in self._claims.values() if claim.entry.partition == partition]

    @property
    def replays_a_suspect(self) -> bool:
        """A suspect runs, and has no new token yet."""
        return any(job.alone for job in self._jobs.values())

    def claim(self, entries: Iterable[Entry]) -> None:
        """Those that are not held already: an own one comes back when its renewal was late."""
        held = {job.lease.entry for job in self._jobs.values()}
        for entry in entries:
            if entry.key not in held:
                self._claims.setdefault(entry.key, Claim(entry))

    def grant(self, entry: Entry, spec: JobSpec, grant: Taken) -> None:
        """An entry was taken as soon as it was read."""
        claim = self._claims.setdefault(entry.key, Claim(entry))
        claim.spec, claim.grant = spec, grant

    def drop_claim(self, claim: Claim) -> bool:
        """It becomes a job, was given up, or is lost; False when it was lost before."""
        found = self._claims.pop(claim.entry.key, None) is not None
        if found:
            self._signal()
        return found

    @property
    def free_slots(self) -> int:
        return max(0, self.capacity - len(self._jobs) - len(self._claims) - self._reserved)

    @contextmanager
    def reserve(self, count: int) -> Iterator[int]:
        """Nobody else fills these slots meanwhile."""
        self._reserved += count
        try:
            yield count
        finally:
            self._reserved -= count
            self._signal()

    def add(self, job: HeldJob) -> None:
        self._jobs[job.spec.id] = job
        self._signal()

    def pop(self, job_id: str) -> HeldJob | None:
        """Let go of a job, if it is held: its slot is free and its tokens are no more accepted."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            if job.deadline is not None:
                job.deadline.cancel()
            self._signal()
        return job

    def progressed(self, job: HeldJob) -> None:
        """A suspect has a new token in its log: it is none any more."""
        job.alone = False
        self._signal()

    async def changed(self) -> None:
        """Wait until a job comes or goes, or a suspect is cleared."""
        await self._changed.wait()

    def _signal(self) -> None:
        # Wakes those who wait now; later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
