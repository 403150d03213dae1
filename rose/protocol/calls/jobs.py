"""What is done with a job: it is submitted, cancelled, deleted, and its log is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import Struct

from rose.errors import (
    BrokerUnavailable,
    DeadlineExceeded,
    InvalidParameter,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    TenantLimited,
)
from rose.protocol.calls.takes import Lease
from rose.protocol.codec import encode_event
from rose.protocol.events import CancelledEvent, Event, FailedEvent
from rose.protocol.jobs import JobSpec, Priority
from rose.protocol.keys import GROUP, Partition
from rose.protocol.scripts import Arg, Call, load, malformed, ms_until, now_ms, value_or


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Back-pressure: limits of the unfinished jobs of a partition.

    The workers announce those of the queue, where None means no limit. A caller of `submit` may
    set lower ones; None means that it does not.
    """

    max_jobs: int | None = None
    max_tokens: int | None = None
    max_bytes: int | None = None

    @property
    def facts(self) -> dict[str, str]:
        """As a worker announces them."""
        return {
            "max_jobs": str(value_or(self.max_jobs, "")),
            "max_tokens": str(value_or(self.max_tokens, "")),
            "max_bytes": str(value_or(self.max_bytes, "")),
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
    record: bytes = b""
    owner: str = ""
    tenant: str = ""
    prompt_estimate: int = 0
    """tokens"""
    adapter: str | None = None
    chain: str = ""
    """digests of the beginnings of its prompt, where its worker is chosen by them"""

    @classmethod
    def of(
        cls,
        job: JobSpec,
        raw: bytes,
        priority: Priority,
        idempotency_key: str | None = None,
        *,
        record: bytes = b"",
        owner: str = "",
        tenant: str = "",
        chain: str = "",
    ) -> Submission:
        """`raw`: the encoded job; `record`, `owner` and `tenant`: checked; `chain`: of
        `rose.protocol.placement`."""
        prompt = job.prompt
        tokens = len(job.token_ids) or None
        size = len(prompt.encode()) if isinstance(prompt, str) else None
        if job.encode is not None and job.encode.truncate:  # none is too long
            tokens = size = None
        return cls(
            job.id,
            raw,
            job.token_estimate,
            priority,
            idempotency_key,
            tokens,
            size,
            job.deadline_ms,
            record,
            owner,
            tenant,
            job.prompt_estimate,
            job.adapter,
            chain,
        )

    @property
    def size(self) -> int:
        """Bytes sent to Redis."""
        return len(self.raw) + len(self.record)


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
    bounds: list[Arg] = [
        len(streams),
        value_or(limits.max_jobs, ""),
        value_or(limits.max_tokens, ""),
        value_or(limits.max_bytes, ""),
    ]
    args: list[Arg] = []
    now, tenants = now_ms(), set[str]()
    for job in jobs:
        if job.tenant:
            tenants.add(job.tenant)
        keys.append(partition.state(job.job_id))
        if job.idempotency_key is not None:
            keys.append(partition.idempotency(job.idempotency_key, producer))
        args += (f"{_header(job)}{_rarer(job, now)}", job.raw, job.record)
    return Call(load("submit"), keys, [*bounds, " ".join(sorted(tenants)), *args])


def _header(job: Submission) -> str:
    return (
        f"{job.priority.level} {job.cost} {value_or(job.prompt_tokens, '-')} "
        f"{value_or(job.prompt_bytes, '-')} {job.tenant or '-'} {job.prompt_estimate}"
    )


def _rarer(job: Submission, now: int) -> str:
    """What most jobs have none of; submit.lua reads it only where it is."""
    key, deadline, owner, adapter = job.idempotency_key, job.deadline_ms, job.owner, job.adapter
    if key is None and deadline is None and not (owner or adapter or job.chain):
        return ""
    return (
        f" {0 if key is None else 1} {ms_until(deadline, now)} {owner or '-'} {adapter or '-'} "
        f"{job.chain or '-'}"
    )


def refusals(reply: Sequence[Any]) -> dict[int, list[bytes]]:
    """The outcomes of jobs that were not simply enqueued, by the number of the job. `submitted_id`
    reads each of them.

    Raises:
        MalformedMessage
    """
    try:
        return {int(item[0]): item[1:] for item in reply}
    except (ValueError, LookupError, TypeError) as error:
        raise malformed("submit", error) from None


def submitted_id(reply: list[bytes]) -> str:
    """The id under which the job is enqueued: an earlier one for a repeated idempotency key.

    Raises:
        QueueFull, PromptTooLong, TenantLimited
        InvalidParameter: the workers do not serve its adapter; its id is of a deleted job.
        BrokerUnavailable: the job stream takes no more entries.
        MalformedMessage: somebody else has written where submit.lua reads.
    """
    try:
        if reply[0] == b"FULL":
            raise QueueFull(int(reply[2]), int(reply[3]), reply[1].decode())
        if reply[0] == b"LIMITED":
            tenant, limit = reply[1].decode(), reply[2].decode()
            count, most, ms = map(int, reply[3:])
            raise TenantLimited(tenant, limit, count, most, ms / 1000)
        if reply[0] == b"BLOCKED":
            raise BrokerUnavailable(
                f"{reply[1].decode()} takes no more entries, since somebody has written one with "
                "the last possible id: nothing was enqueued; a worker makes it anew when the jobs "
                "in it have ended, try again then"
            )
        refused: InvalidRequest
        if reply[0] == b"TOO_LONG":
            refused = _too_long(int(reply[1]), int(reply[2]))
        elif reply[0] == b"DELETED":
            refused = InvalidParameter(
                f"job_id: the job {reply[1].decode()!r} was deleted, and a worker has not ended it "
                "yet: submit it again when that is done, or take another id",
                param="job_id",
            )
        elif reply[0] == b"NO_ADAPTER":
            refused = _no_adapter(*(word.decode() for word in reply[1:4]))
        else:
            return reply[1].decode()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise malformed("submit", error) from None
    raise refused


def _too_long(least: int, context: int) -> InvalidRequest:
    return PromptTooLong.of(f"at least {least}", context)


def _no_adapter(adapter: str, engine: str, adapters: str) -> InvalidRequest:
    if adapters:
        why = f"the queue's workers serve {', '.join(adapters.split())}"
    else:
        why = f"the queue's workers, of the engine {engine}, serve none"
    return InvalidParameter(f"adapter: {adapter!r} is not served: {why}")


RESULT_TTL_S = 3600

#: A worker that lives ends a late job within a step.
_LEFT_TO_WORKER_MS = 5000


def cancel(partition: Partition, job_id: str, *, ttl_s: int = RESULT_TTL_S) -> Call:
    """`ttl_s`: how long its state is kept, if it ends at once."""
    return Call(
        load("cancel"),
        [
            partition.state(job_id),
            partition.tokens(job_id),
            partition.load,
        ],
        [control_message(job_id), encode_event(CancelledEvent(index=0)), ttl_s],
    )


def delete(partition: Partition, job_id: str, *, ttl_s: int = RESULT_TTL_S) -> Call:
    return Call(
        load("delete"),
        [
            partition.state(job_id),
            partition.tokens(job_id),
            partition.load,
            partition.jobs(Priority.NORMAL),
        ],
        [GROUP, control_message(job_id), encode_event(CancelledEvent(index=0)), ttl_s],
    )


def end_late(partition: Partition, job_id: str, logged: int, *, ttl_s: int = RESULT_TTL_S) -> Call:
    """End a job whose deadline has passed. `logged`: tokens in its log, as far as the caller knows.
    The reply: ms after which to call again; 0 if there is no need."""
    late = FailedEvent.of(DeadlineExceeded("its deadline has passed"), logged)
    return Call(
        load("end_late"),
        [partition.state(job_id), partition.tokens(job_id), partition.load],
        [encode_event(late), logged, _LEFT_TO_WORKER_MS, ttl_s],
    )


@lru_cache(maxsize=4096)
def control_message(job_id: str) -> str:
    """What asks the worker of this job to stop it. It is no id: whoever may publish on the channel
    may also listen there, and who knows an id may read the job's tokens."""
    return hashlib.sha256(job_id.encode()).hexdigest()


# There is one for every token: making a dataclass takes several times as long.
class Append(Struct, gc=False):
    """New events of a job, in order: encoded token events, then its terminal event."""

    lease: Lease
    index: int
    """of the first token"""
    counts: list[int] = []
    """tokens in each event"""
    events: list[bytes] = []
    end: Event | None = None


def append(partition: Partition, items: Iterable[Append], *, ttl_s: int) -> Call:
    keys: list[str | bytes] = [partition.load, partition.running]
    args: list[Arg] = [GROUP, str(ttl_s)]
    for item in items:
        lease, end, counts = item.lease, item.end, item.counts
        keys += (lease.state, lease.tokens)
        if end is not None:  # a terminal event's type is the job's status
            args.append(_append_header(item, end.type, lease.entry.id))
            args += item.events
            keys.append(lease.entry.stream)
            args.append(encode_event(end))
        elif len(counts) > 1:
            args.append(_append_header(item, "+" if lease.of_tenant else "-", "-"))
            args += item.events
        else:
            plus = "+" if lease.of_tenant else ""
            args += (f"{lease.take_id} {item.index} {item.index + counts[0]}{plus}", item.events[0])
    return Call(load("append"), keys, args)


def _append_header(item: Append, status: str, entry: str) -> str:
    counts = " ".join(map(str, item.counts))
    return f"{item.lease.take_id} {item.index} {status} {entry} {counts}"


def outcomes(reply: Sequence[Any], count: int) -> list[str]:
    """The outcome of each of the `count` items of an append: OK if the reply does not name it."""
    if not reply:
        return ["OK"] * count
    named = {int(reply[i]): reply[i + 1].decode() for i in range(0, len(reply), 2)}
    return [named.get(item, "OK") for item in range(count)]
