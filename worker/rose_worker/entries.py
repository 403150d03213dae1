"""Entries of job streams, as a worker reads them and gives them up."""

from collections.abc import Mapping
from dataclasses import dataclass

from rose.protocol import EntryKey, FailedEvent, Partition
from rose.protocol.calls import Taken


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a job stream that this worker owns."""

    partition: Partition
    key: EntryKey
    raw: bytes | None
    """the encoded job; None if the entry has no such field"""

    @property
    def enqueued_ms(self) -> int:
        return int(self.key.id.partition("-")[0])


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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry that cannot become a job, and why."""

    entry: Entry
    job_id: str | None
    event: FailedEvent
