"""The jobs this worker holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol import JobSpec, Partition
from protocol.calls import Lease


@dataclass(slots=True)
class HeldJob:
    """A job between take and its last token. Times are of the monotonic clock, in seconds."""

    spec: JobSpec
    partition: Partition
    lease: Lease
    logged: int
    """Tokens in the log, or on their way there: the index of the next one."""
    prompt_tokens: int
    enqueued_at: float
    resumed: bool
    """Another worker, or this one before, has begun on it."""
    taken_at: float = field(default_factory=time.monotonic)
    last_token_at: float | None = None
    deadline: asyncio.TimerHandle | None = None


class JobTable:
    """Every held job by id. Holding one is what renews its lease and accepts its tokens."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._jobs: dict[str, HeldJob] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[HeldJob]:
        return iter(list(self._jobs.values()))

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def get(self, job_id: str) -> HeldJob | None:
        return self._jobs.get(job_id)

    @property
    def free_slots(self) -> int:
        return max(0, self.capacity - len(self._jobs))

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

    async def changed(self) -> None:
        """Wait until a job comes or goes."""
        await self._changed.wait()

    def _signal(self) -> None:
        # Wakes those who wait now; later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
