"""The status of a job and of a queue, read from the replies of Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rose.errors import JobNotFound, MalformedMessage
from rose.protocol.jobs import Priority
from rose.protocol.keys import RELEASED


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A snapshot. Times are Unix milliseconds; None for what has not happened."""

    job_id: str
    status: str
    """queued, running, finished, failed or cancelled"""
    tokens: int
    epoch: int
    """how often a worker has begun on it or handed it back"""
    attempts: int
    """takes since it last got further"""
    worker: str | None
    cancel_requested: bool
    enqueued_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    retry_of: str | None
    """the dead job that this one repeats"""


STATUS_FIELDS = (
    "status",
    "tokens",
    "epoch",
    "attempts",
    "worker",
    "cancel",
    "enqueued_ms",
    "started_ms",
    "ended_ms",
    "retry_of",
)


def read_status(job_id: str, fields: Sequence[Any]) -> JobStatus:
    """From the reply to HMGET of STATUS_FIELDS.

    Raises:
        JobNotFound
        MalformedMessage: somebody else has written into the job's state.
    """
    with _written_by_us(f"the state of job {job_id}"):
        values = [None if field is None else field.decode() for field in fields]
        status, tokens, epoch, attempts, worker, cancel, enqueued, started, ended, retry_of = values
        if status is None:
            raise job_not_found(job_id)
        return JobStatus(
            job_id,
            status,
            int(tokens or 0),
            int(epoch or 0),
            int(attempts or 0),
            worker,
            cancel == "1",
            _int_or_none(enqueued),
            _int_or_none(started),
            _int_or_none(ended),
            retry_of,
        )


def read_standing(job_id: str, fields: Sequence[Any]) -> tuple[str | None, int]:
    """A job's status, None where there is no such job, and how many tokens are logged; from the
    reply to HMGET of `status` and `tokens`.

    Raises:
        MalformedMessage: somebody else has written into the job's state.
    """
    with _written_by_us(f"the state of job {job_id}"):
        status, tokens = fields
        return None if status is None else status.decode(), int(tokens or 0)


@contextmanager
def _written_by_us(what: str) -> Iterator[None]:
    """Raises: MalformedMessage: it is not what this protocol writes."""
    try:
        yield
    except ValueError as error:  # no number, or no text
        raise MalformedMessage(f"{what} is not what the protocol says: {error}") from None


def _int_or_none(value: str | None) -> int | None:
    return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A snapshot of a queue, over all its partitions."""

    queue: str
    waiting: dict[str, int]
    """jobs that no worker holds, by priority"""
    running: int
    """jobs that workers hold, or held when they died"""
    dead_letters: int
    queued_tokens: int
    """estimated tokens of all jobs that have not ended"""
    model: str | None
    """what the workers serve; None before the first one came"""
    context_tokens: int | None
    workers: dict[str, int]
    """how many jobs each worker holds: of those that live, and of dead ones that hold some still"""
    oldest_running_ms: int | None
    """when the oldest job that a worker holds was enqueued, Unix milliseconds"""
    now_ms: int = 0
    """Redis' clock, by which jobs are enqueued"""

    def age_s(self, time_ms: int | None) -> float | None:
        """How long ago a time by Redis' clock was."""
        return None if time_ms is None else max(0.0, (self.now_ms - time_ms) / 1000)


def job_not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id}: never submitted to this queue, or expired")


def read_queue_status(queue: str, replies: Sequence[Any]) -> QueueStatus:
    """From the replies to `queue_status`, one for each partition.

    Raises:
        MalformedMessage: somebody else has written into the queue's hashes.
    """
    waiting = dict.fromkeys((priority.value for priority in Priority), 0)
    workers: Counter[str] = Counter()
    began: list[int] = []
    dead = tokens = now_ms = 0
    name: str | None = None
    context: int | None = None
    for streams, partition_dead, partition_tokens, model, partition_now_ms in replies:
        for priority, (entries, oldest, held) in zip(Priority, streams, strict=True):
            counts = Counter({c.decode(errors="replace"): int(count) for c, count in held})
            del counts[RELEASED]
            if counts.total():
                began.append(int(oldest.partition(b"-")[0]))
            workers.update(counts)
            waiting[priority.value] += entries - counts.total()
        dead += partition_dead
        now_ms = max(now_ms, partition_now_ms)
        with _written_by_us(f"what queue {queue} says of itself"):
            tokens += int(partition_tokens)
            if model[0] is not None:
                name, context = model[0].decode(), int(model[1] or 0)
    return QueueStatus(
        queue=queue,
        waiting=waiting,
        running=workers.total(),
        dead_letters=dead,
        queued_tokens=tokens,
        model=name,
        context_tokens=context,
        workers=dict(workers),
        oldest_running_ms=min(began, default=None),
        now_ms=now_ms,
    )
