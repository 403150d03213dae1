"""Every state transition as a call of a Lua script: its keys, its arguments and its reply.

A call knows no Redis client: `rose.transport` runs it. Any call may be repeated after a lost reply,
since it carries what makes a repeat harmless (job id, token index, epoch, entry id, take id).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from functools import lru_cache
from typing import Any, Literal

from rose.errors import BrokerUnavailable, MalformedMessage, PromptTooLong, QueueFull
from rose.protocol.codec import MAX_JOB_BYTES, encode_event
from rose.protocol.events import CancelledEvent, Event, FailedEvent
from rose.protocol.jobs import JobSpec, Priority
from rose.protocol.keys import GROUP, RELEASED, EntryKey, JobEntry, Partition
from rose.protocol.scripts import Script, load

Arg = str | bytes | int

#: One fetch brings jobs of at most about so many bytes, so that it fits into the call's timeout.
MAX_FETCH_BYTES = 4 * 2**20

#: How long the name of a listener stands without a word from it, and the note that others wait: as
#: in common.lua.
LISTENER_MS, WAITING_MS = 1000, 3000

#: A worker that holds no job counts as alive for so long after it was last heard of.
ALIVE_S = 15

#: No entry comes after this id. (To XREADGROUP the largest possible id means ">".)
_LAST_ID = "18446744073709551615-0"

#: The number of a priority's stream among those of a partition.
_LEVEL = {priority: number for number, priority in enumerate(Priority, 1)}


@dataclass(frozen=True, slots=True)
class Call:
    """One EVALSHA."""

    script: Script
    keys: Sequence[str | bytes]
    args: Sequence[Arg]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Back-pressure: how much of what has not ended a partition may hold.

    The workers announce those of the queue, where None means no limit. A caller of `submit` may be
    stricter; None means that it is not.
    """

    max_jobs: int | None = None
    max_tokens: int | None = None
    max_bytes: int | None = None

    @property
    def facts(self) -> dict[str, str]:
        """As a worker announces them."""
        return {
            "max_jobs": str(_value_or(self.max_jobs, "")),
            "max_tokens": str(_value_or(self.max_tokens, "")),
            "max_bytes": str(_value_or(self.max_bytes, "")),
        }


@dataclass(slots=True)
class Submission:
    """A job to enqueue."""

    job_id: str
    raw: bytes
    cost: int
    priority: Priority
    idempotency_key: str | None
    prompt_tokens: int | None
    """None if the prompt is text"""
    prompt_bytes: int | None
    """None if the prompt is not one text"""
    deadline_ms: int | None
    """by this host's clock"""

    @classmethod
    def of(
        cls, job: JobSpec, raw: bytes, priority: Priority, idempotency_key: str | None = None
    ) -> Submission:
        """`raw`: the encoded job."""
        prompt = job.prompt
        tokens = len(job.token_ids) or None
        size = len(prompt.encode()) if isinstance(prompt, str) else None
        estimate, deadline = job.token_estimate, job.deadline_ms
        return cls(job.id, raw, estimate, priority, idempotency_key, tokens, size, deadline)


def submit(
    partition: Partition,
    jobs: Iterable[Submission],
    *,
    limits: QueueLimits,
    producer: str = "",
) -> Call:
    """Redis serves nobody else while the script runs: pass hundreds of jobs, not thousands.

    `producer`: whose idempotency keys they are: the user of Redis.
    """
    streams = partition.all_jobs
    keys: list[str | bytes] = [partition.load, partition.model, *streams]
    args: list[Arg] = [
        len(streams),
        _value_or(limits.max_jobs, ""),
        _value_or(limits.max_tokens, ""),
        _value_or(limits.max_bytes, ""),
    ]
    now = now_ms()
    for job in jobs:
        keys.append(partition.state(job.job_id))
        if job.idempotency_key is not None:
            keys.append(partition.idempotency(job.idempotency_key, producer))
        args += (
            f"{_LEVEL[job.priority]} {job.cost} {_value_or(job.prompt_tokens, '-')} "
            f"{_value_or(job.prompt_bytes, '-')} {0 if job.idempotency_key is None else 1} "
            f"{_ms_until(job.deadline_ms, now)}",
            job.raw,
        )
    return Call(load("submit"), keys, args)


def refusals(reply: Sequence[Any]) -> dict[int, list[bytes]]:
    """The outcomes of jobs that were not simply enqueued, by the number of the job. `submitted_id`
    reads each of them.

    Raises:
        MalformedMessage
    """
    try:
        return {int(item[0]): item[1:] for item in reply}
    except (ValueError, LookupError, TypeError) as error:
        raise _malformed("submit", error) from None


def submitted_id(reply: list[bytes]) -> str:
    """The id under which the job is enqueued: an earlier one for a repeated idempotency key.

    Raises:
        QueueFull, PromptTooLong
        BrokerUnavailable: the job stream takes no more entries.
        MalformedMessage: somebody else has written where submit.lua reads.
    """
    try:
        if reply[0] == b"FULL":
            raise QueueFull(int(reply[2]), int(reply[3]), reply[1].decode())
        if reply[0] == b"BLOCKED":
            raise BrokerUnavailable(
                f"{reply[1].decode()} takes no more entries, since somebody has written one with "
                "the last possible id: nothing was enqueued; a worker makes it anew when the jobs "
                "in it have ended, try again then"
            )
        if reply[0] == b"TOO_LONG":
            least, context = int(reply[1]), int(reply[2])
        else:
            return reply[1].decode()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _malformed("submit", error) from None
    raise PromptTooLong(
        f"the prompt is at least {least} tokens, the model's context is {context} and must hold "
        "a new token too: shorten the prompt"
    )


def cancel(partition: Partition, job_id: str) -> Call:
    return Call(
        load("cancel"),
        [
            partition.state(job_id),
            partition.tokens(job_id),
            partition.load,
            partition.control,
        ],
        [control_message(job_id), encode_event(CancelledEvent(index=0))],
    )


@lru_cache(maxsize=4096)
def control_message(job_id: str) -> str:
    """What asks the worker of this job to stop it. It is no id: whoever may publish on the channel
    may also listen there, and who knows an id may read the job's tokens."""
    return hashlib.sha256(job_id.encode()).hexdigest()


def create_groups(partition: Partition) -> Call:
    return Call(load("create_groups"), partition.all_jobs, [GROUP])


def announce(
    partition: Partition,
    consumer: str,
    facts: Mapping[str, Arg],
    *,
    mode: Literal["join", "replace", "keep"],
) -> Call:
    """Say that a worker lives and what it serves, which `submit` reads. `facts` have at least
    `name` and `fingerprint`, which may be empty.

    "join" is refused where other workers serve another model; "replace" makes this model the
    queue's, after which "keep" tells the workers of the other one so.
    """
    args: list[Arg] = [GROUP, consumer, RELEASED, ALIVE_S * 1000, _LAST_ID, mode]
    args += [arg for fact in facts.items() for arg in fact]
    return Call(load("announce"), [partition.model, partition.jobs(Priority.NORMAL)], args)


class Standing(StrEnum):
    """Of a worker in its queue."""

    SERVES = "SERVES"
    REFUSED = "REFUSED"
    """The queue has another model, and workers that live."""
    REPLACED = "REPLACED"
    """The queue has another model since."""


@dataclass(frozen=True, slots=True)
class Announced:
    standing: Standing
    model: str
    """the queue's"""
    fingerprint: str


def announced(reply: Sequence[bytes]) -> Announced:
    """Reads the reply to `announce`.

    Raises: MalformedMessage
    """
    try:
        standing, model, fingerprint = (word.decode() for word in reply)
        return Announced(Standing(standing), model, fingerprint)
    except ValueError as error:
        raise _malformed("announce", error) from None


def room(partition: Partition) -> Call:
    """Raises OutOfMemoryError where Redis is at its memory limit."""
    return Call(load("room"), [partition.load], [])


def queue_status(partition: Partition) -> Call:
    keys = [partition.load, partition.model, partition.dead, *partition.all_jobs]
    return Call(load("queue_status"), keys, [GROUP, ALIVE_S * 1000])


def elect(partition: Partition, consumer: str, *, lease_ms: int) -> Call:
    """Become or remain the worker that reads the queue's gauges. A lease of 0 resigns."""
    return Call(load("elect"), [partition.reader], [consumer, lease_ms])


def oldest_waiting(partition: Partition) -> Call:
    return Call(load("oldest_waiting"), partition.all_jobs, [GROUP])


def fetch(
    partition: Partition,
    consumer: str,
    count: int,
    *,
    ageing_ms: int,
    wait: bool = False,
    adopt: Iterable[EntryKey] | None = None,
    max_bytes: int = MAX_FETCH_BYTES,
) -> Call:
    """`wait`: read nothing where another worker listens. `adopt`: after a lost reply, all entries
    that the consumer knows it owns; the others that it owns come first. `max_bytes`: of jobs in the
    reply, which the last one may exceed."""
    streams = partition.all_jobs
    args: list[Arg] = [GROUP, consumer, count, ageing_ms, max_bytes, MAX_JOB_BYTES, RELEASED]
    args += ("wait" if wait else "", "" if adopt is None else "adopt")
    args += (f"{streams.index(entry.stream) + 1} {entry.id}" for entry in adopt or ())
    return Call(load("fetch"), [*partition.idle, *streams], args)


def hand_on(partition: Partition, consumer: str, *, leaves: bool) -> Call:
    """Let the next idle worker listen. `leaves`: this one cannot where nobody else waits."""
    return Call(load("hand_on"), partition.idle, [consumer, "leaves" if leaves else ""])


def reclaim(partition: Partition, *, lease_ms: int, interval_ms: int, patience_ms: int) -> Call:
    """Give the entries of silent workers to `released`. `patience_ms`: how long workers may renew
    their leases after a time in which they could not."""
    args: list[Arg] = [GROUP, RELEASED, lease_ms, interval_ms, patience_ms]
    return Call(load("reclaim"), [partition.reclaim, *partition.all_jobs], args)


def new_take_id() -> str:
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True)
class Take:
    """The wish to work on a job. A repeat with the same `take_id` answers what the first call did
    and charges nothing, as long as the worker still has the job."""

    entry: EntryKey
    job_id: str
    take_id: str = field(default_factory=new_take_id)


def take(
    partition: Partition,
    takes: Iterable[Take],
    consumer: str,
    *,
    ttl_s: int,
    model: str = "",
    mode: Literal["", "alone", "unread"] = "",
) -> Call:
    """`model`: its fingerprint; a text that another one has begun is not taken.

    `mode`: "alone" takes suspects too; "unread" reads the next entry of the stream of the only
    job, and takes it if it is that job.
    """
    keys = [partition.running]
    args: list[Arg] = [GROUP, consumer, ttl_s, mode, model]
    for item in takes:
        keys += (
            item.entry.stream,
            partition.state(item.job_id),
            partition.tokens(item.job_id),
        )
        args += (item.entry.id, item.take_id)
    if mode == "unread":
        keys.append(partition.waiting)
    return Call(load("take"), keys, args)


@dataclass(slots=True)
class Taken:
    """The worker owns the job until somebody raises `epoch` again."""

    epoch: int
    attempts: int
    cancel_requested: bool
    logged: int
    """tokens in its log"""
    deadline_ms: int | None = None
    """by Redis' clock; None if `submit` has noted none"""
    now_ms: int = field(default=0, compare=False)
    """Redis' clock at the take"""
    taken_at: float = field(default_factory=time.monotonic, compare=False)

    def seconds_until(self, time_ms: int) -> float:
        """From now until a time by Redis' clock; the clock of this host does not count."""
        return (time_ms - self.now_ms) / 1000 - (time.monotonic() - self.taken_at)


class NotTaken(Enum):
    NOTHING_TO_DO = auto()
    """The job has ended, is a duplicate, or belongs to another worker."""
    SUSPECT = auto()
    """The lease of the last take has lapsed without a new token: take it alone."""
    MALFORMED = auto()
    """Somebody else has written into the job's state or its log."""


@dataclass(frozen=True, slots=True)
class OfOtherModel:
    """Not taken: another model has written a part of the text."""

    logged: int
    """tokens in its log"""


def taken(reply: bytes) -> Taken | NotTaken | OfOtherModel:
    """Reads one item of the reply to `take`.

    Raises:
        MalformedMessage: take.lua does not reply so.
    """
    outcome, _, facts = reply.partition(b" ")
    if outcome == b"SUSPECT":
        return NotTaken.SUSPECT
    if outcome == b"MALFORMED":
        return NotTaken.MALFORMED
    if outcome not in (b"TAKEN", b"OTHER_MODEL"):
        return NotTaken.NOTHING_TO_DO
    try:
        if outcome == b"OTHER_MODEL":
            return OfOtherModel(int(facts))
        *numbers, deadline = facts.split()
        epoch, attempts, cancel_flag, logged, now = map(int, numbers)
        deadline_ms = None if deadline == b"-" else int(deadline)
    except ValueError as error:
        raise _malformed("take", error) from None
    return Taken(epoch, attempts, cancel_flag == 1, logged, deadline_ms, now)


@dataclass(slots=True)
class Lease:
    """What a worker holds while it works on a job. The keys are made once a job, not once a
    token."""

    partition: Partition
    entry: EntryKey
    job_id: str
    epoch: int
    state: bytes = field(init=False)
    tokens: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.partition.state(self.job_id).encode()
        self.tokens = self.partition.tokens(self.job_id).encode()


@dataclass(slots=True)
class Append:
    """New events of a job, in order: encoded token events, then its terminal event."""

    lease: Lease
    index: int
    """of the first token"""
    counts: list[int] = field(default_factory=list)
    """tokens in each event"""
    events: list[bytes] = field(default_factory=list)
    end: Event | None = None


def append(partition: Partition, items: Iterable[Append], *, ttl_s: int) -> Call:
    keys: list[str | bytes] = [partition.load, partition.running]
    args: list[Arg] = [GROUP, ttl_s]
    for item in items:
        lease, end = item.lease, item.end
        # A terminal event's type is the job's status.
        status, entry = ("-", "-") if end is None else (end.type, lease.entry.id)
        counts = " ".join(map(str, item.counts))
        keys += (lease.state, lease.tokens)
        args += (f"{lease.epoch} {item.index} {status} {entry} {counts}", *item.events)
        if end is not None:
            keys.append(lease.entry.stream)
            args.append(encode_event(end))
    return Call(load("append"), keys, args)


def outcomes(reply: Sequence[Any], count: int) -> list[str]:
    """The outcome of each of the `count` items of an append: OK if the reply does not name it."""
    if not reply:
        return ["OK"] * count
    named = {int(reply[i]): reply[i + 1].decode() for i in range(0, len(reply), 2)}
    return [named.get(item, "OK") for item in range(count)]


def renew(stream: str, consumer: str, entries: Iterable[str]) -> Call:
    return Call(load("renew"), [stream], [GROUP, consumer, *entries])


def release(partition: Partition, stream: str, consumer: str, jobs: Sequence[JobEntry]) -> Call:
    """`jobs`: entries of `stream`."""
    return Call(
        load("release"),
        [stream, *(partition.state(job.job_id) for job in jobs)],
        [GROUP, consumer, RELEASED, *(job.entry.id for job in jobs)],
    )


def dead_letter(
    partition: Partition,
    entry: EntryKey,
    consumer: str,
    *,
    raw: bytes,
    job_id: str | None,
    event: FailedEvent,
    keep: int,
    keep_s: int,
    ttl_s: int,
) -> Call:
    """`raw`: the encoded job; `job_id`: None if `raw` cannot be read; `event`: the reason, which
    becomes the job's terminal event. Keeps the newest `keep` dead letters for `keep_s` seconds."""
    keys = [entry.stream, partition.dead]
    args: list[Arg] = [GROUP, consumer, entry.id, event.code, event.message, raw]
    args += [keep, keep_s, ttl_s]
    if job_id is not None:
        keys += [partition.state(job_id), partition.tokens(job_id), partition.load]
        keys.append(partition.running)
        args += [job_id, encode_event(event)]
    return Call(load("dead_letter"), keys, args)


def leave(partition: Partition, consumer: str) -> Call:
    """Leave the groups. What the consumer still owns is released."""
    return Call(load("leave"), partition.all_jobs, [GROUP, consumer, RELEASED])


#: What one look of the sweep reads: some milliseconds of Redis' time at the most.
_SWEEP_ENTRIES, _SWEEP_BYTES, _SWEEP_JOBS = 100, 2**20, 100


def sweep(partition: Partition, positions: Sequence[bytes], *, again_s: float) -> Call:
    """Look for entries and jobs that nobody would find otherwise. `positions`: from the last look,
    or empty. `again_s`: how long a job that has its entry is not looked at again."""
    args: list[Arg] = [GROUP, RELEASED, _SWEEP_ENTRIES, _SWEEP_BYTES, _SWEEP_JOBS]
    args += [int(again_s * 1000), *(positions or [b""] * len(partition.all_jobs))]
    return Call(load("sweep"), [partition.running, *partition.all_jobs], args)


@dataclass(frozen=True, slots=True)
class Swept:
    released: int
    """entries that no pending list held"""
    positions: Sequence[bytes]
    lost: Sequence[Lease]
    """jobs without an entry"""
    tokens: Sequence[int]
    """in the log of each of these"""


def swept(partition: Partition, reply: Sequence[Any]) -> Swept:
    """Reads the reply to `sweep`.

    Raises: MalformedMessage
    """
    released, positions, jobs = reply
    lost, tokens = [], []
    try:
        for job_id, epoch, logged, stream, entry in jobs:
            place = EntryKey(stream.decode(), entry.decode())
            lost.append(Lease(partition, place, job_id.decode(), int(epoch)))
            tokens.append(int(logged))
    except ValueError as error:
        raise _malformed("sweep", error) from None
    return Swept(released, positions, lost, tokens)


def forget(partition: Partition, *, idle_ms: int) -> Call:
    """Delete consumers that hold nothing and have been silent for `idle_ms`."""
    return Call(load("forget"), partition.all_jobs, [GROUP, idle_ms])


def retry(
    partition: Partition,
    letter: str,
    stream: str,
    job: JobSpec,
    raw: bytes,
    *,
    retry_of: str,
) -> Call:
    """`letter`: the id of its entry in the stream of dead letters; `job`: has a new id; `stream`:
    the job stream that it came from."""
    return Call(
        load("retry"),
        [partition.dead, stream, partition.state(job.id), partition.load],
        [letter, raw, retry_of, job.token_estimate, _ms_until(job.deadline_ms, now_ms())],
    )


def now_ms() -> int:
    """Unix milliseconds, the unit of every time in the protocol."""
    return int(time.time() * 1000)


def _malformed(script: str, error: Exception) -> MalformedMessage:
    return MalformedMessage(f"the reply to {script} is not what it should be: {error}")


def _ms_until(deadline_ms: int | None, now: int) -> int | str:
    """Redis' clock need not be this host's: it is told how much time is left."""
    return "-" if deadline_ms is None else max(0, deadline_ms - now)


def _value_or(value: int | None, absent: str) -> int | str:
    return absent if value is None else value
