"""How a job is named in what the gateway keeps of an API key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedJob:
    queue: str
    job_id: str

    @property
    def member(self) -> str:
        """In a set of jobs; no queue's name has a colon."""
        return f"{self.queue}:{self.job_id}"

    @classmethod
    def of(cls, member: str) -> QueuedJob:
        queue, _, job_id = member.partition(":")
        return cls(queue, job_id)
