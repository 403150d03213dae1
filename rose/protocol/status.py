"""The status and the record of a job, and the status of a queue, read from the replies of Redis."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rose.errors import InvalidParameter, JobNotFound, JobTooLarge, MalformedMessage
from rose.protocol.announced_model import AnnouncedModel, read_model
from rose.protocol.jobs import JOB_ID_PATTERN, Priority
from rose.protocol.keys import ASIDE, RELEASED


class Writer(NamedTuple):
    """Which worker wrote a text, from one of its tokens on."""

    from_token: int
    worker: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A snapshot. Times are Unix milliseconds; None for what has not happened."""

    job_id: str
    status: str
    """queued, running, finished, failed or cancelled"""
    tokens: int
    epoch: int
    """how often a worker has started it or handed it back"""
    attempts: int
    """takes since its last new token"""
    worker: str | None
    cancel_requested: bool
    enqueued_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    retry_of: str | None
    """the job whose dead letter this one retries"""
    writers: tuple[Writer, ...] = ()
    """the workers that have had it, the first one first; of very many the last"""
    tenant: str = ""
    """on whose account it runs; "" for nobody's"""


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
    "writers",
    "tenant",
)


def read_status(job_id: str, fields: Sequence[Any]) -> JobStatus:
    """From the reply to HMGET of STATUS_FIELDS.

    Raises:
        JobNotFound
        MalformedMessage: somebody else has written into the job's state.
    """
    with written_by_us(f"the state of job {job_id}"):
        values = [None if field is None else field.decode() for field in fields]
        status, tokens, epoch, attempts, worker, cancel, *times = values[:-3]
        retry_of, writers, tenant = values[-3:]
        enqueued, started, ended = (int_or_none(time) for time in times)
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
            enqueued,
            started,
            ended,
            retry_of,
            _writers(writers or ""),
            tenant or "",
        )


def _writers(lines: str) -> tuple[Writer, ...]:
    """Raises: ValueError"""
    parts = (line.partition(" ") for line in lines.splitlines())
    return tuple(Writer(int(from_token), worker) for from_token, _, worker in parts)


def read_standing(job_id: str, fields: Sequence[Any]) -> tuple[str | None, int]:
    """A job's status, None where there is no such job, and how many tokens are logged; from the
    reply to HMGET of `status`, `tokens` and more.

    Raises:
        MalformedMessage: somebody else has written into the job's state.
    """
    with written_by_us(f"the state of job {job_id}"):
        status, tokens, *_ = fields
        return None if status is None else status.decode(), int(tokens or 0)


@contextmanager
def written_by_us(what: str) -> Iterator[None]:
    """Raises: MalformedMessage: it is not what this protocol writes."""
    try:
        yield
    except ValueError as error:  # no number, or no text
        raise MalformedMessage(f"{what} is not what the protocol says: {error}") from None


def int_or_none(value: str | bytes | None) -> int | None:
    return None if value is None else int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(AnnouncedModel):
    """The announced model of a queue's workers."""

    workers: int
    """that have been seen lately, or hold jobs"""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that lives, or a dead one that still holds jobs."""

    jobs: int
    """that it holds"""
    slots: int | None
    """jobs that it decodes at once; None where it has not said so"""
    silent_ms: int
    """since it was last seen: one that lives speaks every 5 s at least"""


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
    """the number of jobs of each worker: of living ones, and of dead ones that still hold some"""
    oldest_running_ms: int | None
    """when the oldest job that a worker holds was enqueued, Unix milliseconds"""
    now_ms: int = 0
    """Redis' clock, by which jobs are enqueued"""
    served: ServedModel | None = None
    """None before the first worker came"""
    by_worker: dict[str, WorkerStatus] = field(default_factory=dict)
    """the same workers"""
    generated_tokens: int = 0
    """that were ever logged: two looks and `now_ms` of each are a rate"""
    tenants_have_jobs: bool = False
    """that have not ended"""
    partitions: int | None = None
    """of the workers; None before the first one came"""
    places: bool | None = None
    """Jobs are placed by the beginnings of their prompts; None: no worker is to"""
    unplaced: str | None = None
    """a worker for which they are not"""

    def age_s(self, time_ms: int | None) -> float | None:
        """How long ago a time by Redis' clock was."""
        return None if time_ms is None else max(0.0, (self.now_ms - time_ms) / 1000)


def check_job_id(job_id: str) -> None:
    """Raises: JobNotFound: no job can have this id, and perhaps nothing can send it to Redis."""
    if not isinstance(job_id, str) or re.fullmatch(JOB_ID_PATTERN, job_id) is None:
        raise JobNotFound(
            f"no job {repr(job_id)[:82]}: an id has 1 to 80 letters, digits, '_', '.' or '-', and "
            "begins with a letter or a digit"
        )


def job_not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id}: never submitted to this queue, or expired")


def read_queues(flat: Sequence[bytes]) -> dict[str, int]:
    """How many partitions each queue has, from the reply to HGETALL of QUEUES.

    Raises:
        MalformedMessage: somebody else has written there.
    """
    with written_by_us("the list of queues"):
        names = [name.decode() for name in flat[::2]]
        return dict(zip(names, map(int, flat[1::2]), strict=True))


def read_queue_status(queue: str, replies: Sequence[Any]) -> QueueStatus:
    """From the replies to `queue_status`, one for each partition.

    Raises:
        MalformedMessage: somebody else has written into the queue's hashes.
    """
    sums = _QueueSums()
    for reply in replies:
        sums.add(queue, reply)
    workers, facts = sums.workers, sums.facts
    served = ServedModel(**facts, workers=len(workers)) if facts else None
    return QueueStatus(
        queue=queue,
        waiting=sums.waiting,
        running=sum(worker.jobs for worker in workers.values()),
        dead_letters=sums.dead_letters,
        queued_tokens=sums.queued_tokens,
        model=served.name if served else None,
        context_tokens=served.context_tokens if served else None,
        workers={name: worker.jobs for name, worker in workers.items()},
        oldest_running_ms=min(sums.oldest_ms, default=None),
        now_ms=sums.now_ms,
        served=served,
        by_worker=workers,
        generated_tokens=sums.generated_tokens,
        tenants_have_jobs=sums.tenants_jobs > 0,
        partitions=sums.partitions,
        places=sums.places,
        unplaced=sums.unplaced,
    )


@dataclass(slots=True)
class _QueueSums:
    """A queue's status, over the partitions that were added."""

    waiting: dict[str, int] = field(default_factory=lambda: {p.value: 0 for p in Priority})
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    oldest_ms: list[int] = field(default_factory=list)
    """when the oldest job of each stream was enqueued that a worker holds"""
    dead_letters: int = 0
    queued_tokens: int = 0
    generated_tokens: int = 0
    now_ms: int = 0
    tenants_jobs: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    partitions: int | None = None
    places: bool | None = None
    unplaced: str | None = None

    def add(self, queue: str, reply: Sequence[Any]) -> None:
        streams, dead_letters, queued_tokens, facts, now_ms, generated_tokens, parked = reply
        *model, partitions, placement = facts
        if placement is not None:
            self.places = placement == b"1" and self.places is not False
            without, _, name = placement.decode(errors="replace").partition(" ")
            self.unplaced = name if without == "without" else self.unplaced
        for priority, stream in zip((*Priority, None), streams, strict=True):
            self._add_stream(priority, *stream)
        self.dead_letters += dead_letters
        self.now_ms = max(self.now_ms, now_ms)
        with written_by_us(f"what queue {queue} says of itself"):
            self.queued_tokens += int(queued_tokens)
            self.generated_tokens += int(generated_tokens)
            for priority, count in zip(Priority, parked, strict=True):
                self.waiting[priority.value] += max(0, int(count))
                self.tenants_jobs += max(0, int(count))
            self.facts = read_model(model) or self.facts
            self.partitions = self.partitions or int_or_none(partitions)

    def _add_stream(
        self, priority: Priority | None, entries: int, oldest: bytes, consumers: Sequence[Any]
    ) -> None:
        """`priority`: None for the stream of tenants' jobs. What stands in it and no worker holds
        was handed back."""
        here = _read_workers(consumers)
        for name, worker in here.items():
            self.workers[name] = _together(self.workers.get(name), worker)
        held = sum(worker.jobs for worker in here.values())
        if held:
            self.oldest_ms.append(int(oldest.partition(b"-")[0]))
        self.waiting[(priority or Priority.NORMAL).value] += entries - held
        self.tenants_jobs += entries if priority is None else 0


def _read_workers(consumers: Sequence[Any]) -> dict[str, WorkerStatus]:
    """Those of one stream, by name."""
    workers: dict[str, WorkerStatus] = {}
    for raw, jobs, silent_ms, slots in consumers:
        name = raw.decode(errors="replace")
        if name not in (ASIDE, RELEASED):
            with written_by_us(f"what worker {name} says of itself"):
                status = WorkerStatus(int(jobs), int_or_none(slots or None), int(silent_ms))
            workers[name] = _together(workers.get(name), status)
    return workers


def _together(before: WorkerStatus | None, more: WorkerStatus) -> WorkerStatus:
    """What two streams say of one worker. It has the same slots for all partitions."""
    if before is None:
        return more
    slots = [slots for slots in (before.slots, more.slots) if slots is not None]
    silent_ms = min(before.silent_ms, more.silent_ms)
    return WorkerStatus(before.jobs + more.jobs, max(slots, default=None), silent_ms)


MAX_RECORD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A snapshot. Times are Unix milliseconds; None for what has not happened."""

    job_id: str
    owner: str
    """whose job it is, as `submit` was told; "" for nobody's"""
    record: bytes
    """as `submit` was given it: neither Redis nor a worker reads it"""
    status: str
    """queued, running, finished, failed or cancelled"""
    tokens: int
    cancel_requested: bool
    enqueued_ms: int | None
    started_ms: int | None
    """of the last take"""
    ended_ms: int | None
    tenant: str = ""
    """on whose account it runs; "" for nobody's"""


RECORD_FIELDS = (
    "status",
    "deleted",
    "owner",
    "record",
    "tokens",
    "cancel",
    "enqueued_ms",
    "started_ms",
    "ended_ms",
    "tenant",
)


def read_record(job_id: str, fields: Sequence[Any]) -> JobRecord:
    """From the reply to HMGET of RECORD_FIELDS.

    Raises:
        JobNotFound: it was never submitted, has expired, or was deleted.
        MalformedMessage: somebody else has written into the job's state.
    """
    status, deleted, owner, record, tokens, cancel, *times, tenant = fields
    if status is None or deleted is not None:
        raise job_not_found(job_id)
    with written_by_us(f"the state of job {job_id}"):
        enqueued, started, ended = (int_or_none(time) for time in times)
        return JobRecord(
            job_id,
            (owner or b"").decode(),
            record or b"",
            status.decode(),
            int(tokens or 0),
            cancel == b"1",
            enqueued,
            started,
            ended,
            (tenant or b"").decode(),
        )


def check_record(record: bytes, owner: str) -> None:
    """Raises: InvalidParameter, JobTooLarge"""
    if not isinstance(record, bytes):
        raise InvalidParameter(f"record: must be bytes (got {type(record).__name__})")
    if len(record) > MAX_RECORD_BYTES:
        raise JobTooLarge(
            f"the record is {len(record)} bytes, the limit is {MAX_RECORD_BYTES}: "
            "store the data elsewhere and keep a reference"
        )
    if owner and not re.fullmatch(JOB_ID_PATTERN, owner):
        raise InvalidParameter(
            f"owner: {owner!r} must be 1 to 80 characters of A-Z a-z 0-9 _ . -, the first a letter "
            "or digit; leave it out for nobody"
        )
