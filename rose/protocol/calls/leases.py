"""Leases: what a worker holds while it works on jobs, and how it renews or releases it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rose.protocol.calls.call import Call
from rose.protocol.keys import GROUP, RELEASED, EntryKey, JobEntry, Partition
from rose.protocol.scripts import load


@dataclass(slots=True)
class Lease:
    """What a worker holds while it works on a job. The keys are made once a job, not once a
    token."""

    partition: Partition
    entry: EntryKey
    job_id: str
    take_id: str
    """of the take by which the worker got it: no append counts without it"""
    of_tenant: bool = field(init=False)
    state: bytes = field(init=False)
    tokens: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.of_tenant = self.entry.stream == self.partition.tenant_jobs
        self.state = self.partition.state(self.job_id).encode()
        self.tokens = self.partition.tokens(self.job_id).encode()


def renew(stream: str, consumer: str, entries: Iterable[str]) -> Call:
    return Call(load("renew"), [stream], [GROUP, consumer, *entries])


def release(partition: Partition, stream: str, consumer: str, jobs: Sequence[JobEntry]) -> Call:
    """`jobs`: entries of `stream`."""
    return Call(
        load("release"),
        [stream, *(partition.state(job.job_id) for job in jobs)],
        [GROUP, consumer, RELEASED, *(job.entry.id for job in jobs)],
    )


def leave(partition: Partition, consumer: str) -> Call:
    """Leave the groups. What the consumer still owns is released."""
    return Call(
        load("leave"), [partition.workers, *partition.all_streams], [GROUP, consumer, RELEASED]
    )
