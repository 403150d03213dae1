"""The jobs that this worker holds, and the entries that it is about to start.

    Redis -- fetch, reclaim --> claims -- take --> jobs -- last token --> gone

A claim and a job each fill a slot, and the worker renews the leases of both. Only a job, which has
been taken, may append.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from rose.protocol import EntryKey, FailedEvent, JobEntry, JobSpec, Partition, readable_job_id
from rose.protocol.calls import Lease, Placed, Taken, control_message, new_take_id


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a job stream that this worker owns."""

    partition: Partition
    key: EntryKey
    raw: bytes | None
    """the encoded job; None if the entry has no such field"""

    @property
    def level(self) -> int | None:
        """Of its priority, 1 for the highest; None of a tenant's job."""
        streams = self.partition.all_jobs
        return streams.index(self.key.stream) + 1 if self.key.stream in streams else None


@dataclass(frozen=True, slots=True)
class Fetched:
    entries: list[Entry]
    seen: list[bytes]
    """the last entry of each stream that anybody has read"""
    redelivered: int
    """how many of the entries another worker has had before"""
    more: bool
    """There may be more: the reply reached the requested count or its maximum size."""
    listens: bool
    """This worker is the listener of its partition."""
    begun: Mapping[EntryKey, Taken]
    """those that were taken already"""
    due_s: float | None = None
    """when any worker may take the first job that stands aside for another; None if none does"""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry that cannot become a job, and why."""

    entry: Entry
    job_id: str | None
    event: FailedEvent


class RoundRobin:
    """The partitions of one worker that wait for slots, and when each had some last."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, asyncio.Event] = {}
        self._last: dict[Partition, int] = {}
        self._turns = 0

    @contextmanager
    def waiting(self, partition: Partition) -> Iterator[asyncio.Event]:
        """It wants a slot. The event is set when it may ask for its share."""
        event = self._waiting[partition] = asyncio.Event()
        try:
            yield event
        finally:
            del self._waiting[partition]

    def wake(self) -> None:
        """Slots may have become free."""
        if self._waiting:
            for partition in sorted(self._waiting, key=self._last_turn):
                self._waiting[partition].set()

    def share(self, partition: Partition, free: int) -> int:
        """How many of the free slots it may have while the others wait."""
        others = [other for other in self._waiting if other != partition]
        own = self._last_turn(partition)
        before = sum(self._last_turn(other) < own for other in others)
        return max(0, -(-(free - before) // (len(others) + 1)))

    def took(self, partition: Partition) -> None:
        """It has had its share."""
        self._turns += 1
        self._last[partition] = self._turns

    def _last_turn(self, partition: Partition) -> tuple[int, int]:
        return self._last.get(partition, 0), partition.index


@dataclass(slots=True, eq=False)
class Claim:
    """An entry that this worker owns, and that is to become a job."""

    entry: Entry
    spec: JobSpec | None = None
    """set once it has been decoded"""
    taken: Taken | None = None
    """set once it has been taken"""
    logged: int = 0
    """tokens in its log, by the reply to its take"""
    suspect: bool = False
    """The lease of the last take has lapsed without a new token: take it alone."""
    preparing: bool = False
    """Its prompt or its grammar is prepared beside intake."""
    take_id: str = field(default_factory=new_take_id)
    """Every repeat of its take carries the same one, so that a lost reply costs nothing."""

    @property
    def job_entry(self) -> JobEntry:
        """A job whose id cannot be read is named `unreadable`."""
        return JobEntry(self.entry.key, readable_job_id(self.entry.raw or b"") or "unreadable")

    @property
    def size(self) -> int:
        """Bytes of the encoded job."""
        return len(self.entry.raw or b"")


@dataclass(slots=True, eq=False)
class HeldJob:
    """A job between its take and its last token. Times are seconds of the monotonic clock."""

    spec: JobSpec
    lease: Lease
    logged: int
    """tokens in the log or on their way there, so the index of the next one"""
    prompt_tokens: int
    enqueued_at: float
    resumed: bool
    """This worker or another has started it before."""
    epoch: int = 1
    """takes and hand-backs of the job up to its take"""
    added: int = 0
    """how many jobs the engine was given up to this one; its outputs come later"""
    first_index: int = 0
    """tokens in the log when it was taken"""
    level: int | None = None
    """of its priority, 1 for the highest; None if it is not known, of a tenant's job"""
    placed: Placed | None = None
    """whose worker it was, if that is known"""
    alone: bool = False
    """It is a suspect: the worker starts nothing else until its log has a new token."""
    taken_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    """when this worker's first token was logged"""
    last_token_at: float | None = None
    left_out: str | None = None
    """why its grammar of calls was left out"""
    deadline: asyncio.TimerHandle | None = None


class JobTable:
    """Every held job by id. The worker renews leases and accepts tokens of these jobs only."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._claims: dict[EntryKey, Claim] = {}
        self._reserved = 0
        self._jobs: dict[str, HeldJob] = {}
        self._closed: set[Partition] = set()
        self._change: asyncio.Event | None = None
        self._round_robin = RoundRobin()

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: str) -> HeldJob | None:
        return self._jobs.get(job_id)

    def named_by(self, message: str) -> HeldJob | None:
        """The held job that a message on the control channel means."""
        return next(
            (job for job_id, job in self._jobs.items() if control_message(job_id) == message), None
        )

    def holds(self, job: HeldJob) -> bool:
        """Whether it is this very take of the job, not a later one."""
        return self._jobs.get(job.spec.id) is job

    @property
    def jobs(self) -> Iterable[HeldJob]:
        return self._jobs.values()

    def jobs_of(self, partition: Partition) -> list[HeldJob]:
        return [job for job in self._jobs.values() if job.lease.partition == partition]

    def entries_of(self, partition: Partition) -> list[JobEntry]:
        """The entries of all jobs and claims in a partition."""
        held = [JobEntry(job.lease.entry, job.spec.id) for job in self.jobs_of(partition)]
        return held + [claim.job_entry for claim in self.claims_of(partition)]

    def claims_of(self, partition: Partition) -> list[Claim]:
        """Oldest first."""
        return [claim for claim in self._claims.values() if claim.entry.partition == partition]

    @property
    def replays_a_suspect(self) -> bool:
        """Whether a suspect runs that has no new token yet."""
        return any(job.alone for job in self._jobs.values())

    def claim(self, claims: Iterable[Claim]) -> None:
        """Add claims. An entry that is already held may come again if its renewal was late. If it
        has been taken again, Redis has forgotten the earlier take."""
        held = {job.lease.entry for job in self._jobs.values()}
        for claim in claims:
            key = claim.entry.key
            if key not in held or claim.taken is not None:
                self._claims.setdefault(key, claim)

    def hold(self, claim: Claim) -> None:
        """Add a claim whose take has been sent already, answered or not."""
        self._claims[claim.entry.key] = claim

    def drop_claim(self, claim: Claim) -> bool:
        """Remove a claim that becomes a job, was given up or is lost. False if it is gone."""
        if self._claims.pop(claim.entry.key, None) is None:
            return False
        self.changed()
        return True

    def close(self, partition: Partition, *, closed: bool) -> None:
        """While any partition is closed nothing new is taken. What is held continues."""
        if closed:
            self._closed.add(partition)
        else:
            self._closed.discard(partition)

    @property
    def free_slots(self) -> int:
        if self._closed:
            return 0
        return max(0, self.capacity - len(self._jobs) - len(self._claims) - self._reserved)

    @property
    def is_full(self) -> bool:
        """Every slot has a job or a claim; none is kept for what is about to come."""
        return not self._closed and len(self._jobs) + len(self._claims) >= self.capacity

    @property
    def exceeded(self) -> bool:
        """There are more jobs and claims than slots."""
        return len(self._jobs) + len(self._claims) > self.capacity

    def share(self, partition: Partition) -> int:
        """How many of the free slots a partition may fill beside others that wait for some."""
        return self._round_robin.share(partition, self.free_slots)

    @contextmanager
    def reserve(self, partition: Partition, count: int) -> Iterator[int]:
        """Keep these slots from being filled by others."""
        if count > 0:
            self._round_robin.took(partition)
        self._reserved += count
        try:
            yield count
        finally:
            self._reserved -= count
            self.changed()

    def add(self, job: HeldJob) -> None:
        self._jobs[job.spec.id] = job
        self.changed()

    def pop(self, job_id: str) -> HeldJob | None:
        """Remove a job if it is held. Its slot is free, its tokens are no longer accepted."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            if job.deadline is not None:
                job.deadline.cancel()
            self.changed()
        return job

    def progressed(self, job: HeldJob) -> None:
        """The log of a suspect has a new token: it is no suspect any more."""
        job.alone = False
        self.changed()

    @property
    def next_change(self) -> asyncio.Event:
        """Set when a job comes or goes, or a suspect is cleared."""
        if self._change is None:
            self._change = asyncio.Event()
        return self._change

    def waiting(self, partition: Partition) -> AbstractContextManager[asyncio.Event]:
        """A partition waits for the next change, to ask for its share of the slots."""
        return self._round_robin.waiting(partition)

    def changed(self) -> None:
        """Wake who waits for a change: here, and where a claim may be begun again."""
        # This wakes the tasks that wait now; later ones wait for the next change.
        if self._change is not None:
            self._change.set()
            self._change = None
        self._round_robin.wake()
