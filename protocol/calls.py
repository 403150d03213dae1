"""Every state transition as a call: which script, which keys, which arguments, what reply.

A call knows nothing of Redis clients; `producer.connection` and `worker.broker` run them. All of
them may be repeated after a lost reply: each carries what makes a repeat harmless (job id, token
index, epoch, entry id).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.codec import encode_event
from protocol.events import CancelledEvent, Event, TokenEvent
from protocol.jobs import JobSpec, Priority
from protocol.keys import GROUP, Partition
from protocol.scripts import Script, load
from rose_errors import PromptTooLong, QueueFull

Arg = str | bytes | int


@dataclass(frozen=True, slots=True)
class Call:
    """One EVALSHA."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Arg]


@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """Back-pressure: how much may wait, None for no limit."""

    max_jobs: int | None = 100_000
    max_tokens: int | None = None


def submit(
    partition: Partition,
    job: JobSpec,
    raw: bytes,
    *,
    priority: Priority,
    limits: SubmitLimits,
    idempotency_key: str | None,
    idempotency_ttl_s: int,
    now_ms: int,
) -> Call:
    text = job.prompt if isinstance(job.prompt, str) else None
    return Call(
        load("submit"),
        [
            partition.jobs(priority),
            partition.state(job.id),
            partition.load,
            partition.model,
            # Without one the slot is filled with a key of the same hash tag, and no TTL says so.
            partition.idempotency(idempotency_key) if idempotency_key else partition.state(job.id),
            *partition.all_jobs,
        ],
        [
            job.id,
            raw,
            job.token_estimate,
            _or_empty(limits.max_jobs),
            _or_empty(limits.max_tokens),
            idempotency_ttl_s if idempotency_key else "",
            len(job.token_ids) or "",
            len(text.encode()) if text is not None else "",
            now_ms,
        ],
    )


def submitted_id(reply: list[bytes], limits: SubmitLimits) -> str:
    """The id under which the job is enqueued: an earlier one for a repeated idempotency key.

    Raises:
        QueueFull, PromptTooLong
    """
    outcome = reply[0]
    if outcome == b"FULL":
        unit = reply[1].decode()
        limit = limits.max_jobs if unit == "jobs" else limits.max_tokens
        raise QueueFull(int(reply[2]), limit or 0, unit)
    if outcome == b"TOO_LONG":
        raise PromptTooLong(
            f"the prompt is at least {int(reply[1])} tokens, the model's context is "
            f"{int(reply[2])} and must hold a new token too: shorten the prompt"
        )
    return reply[1].decode()


def cancel(partition: Partition, job_id: str, *, now_ms: int, ttl_s: int) -> Call:
    return Call(
        load("cancel"),
        [
            partition.state(job_id),
            partition.tokens(job_id),
            partition.load,
            partition.control,
        ],
        [job_id, partition.channel(job_id), encode_event(CancelledEvent(index=0)), now_ms, ttl_s],
    )


def queue_status(partition: Partition) -> Call:
    keys = [partition.load, partition.model, partition.dead, *partition.all_jobs]
    return Call(load("queue_status"), keys, [GROUP])


def fetch(partition: Partition, consumer: str, count: int) -> Call:
    return Call(load("fetch"), partition.all_jobs, [GROUP, consumer, count])


def take(
    partition: Partition,
    stream: str,
    entry: str,
    job_id: str,
    consumer: str,
    *,
    now_ms: int,
    ttl_s: int,
) -> Call:
    return Call(
        load("take"),
        [stream, partition.state(job_id), partition.tokens(job_id)],
        [GROUP, consumer, entry, now_ms, ttl_s],
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """The job is ours until somebody raises `epoch` again."""

    epoch: int
    attempts: int
    cancel_requested: bool
    log: list[bytes]
    """The events logged so far, oldest first."""


def taken(reply: list[Any]) -> Taken | None:
    """None: there is nothing to do (ended, a duplicate, or not ours)."""
    if reply[0] != b"TAKEN":
        return None
    _, epoch, attempts, cancel_flag, log = reply
    events = [fields[1] for _, fields in log]
    return Taken(int(epoch), int(attempts), bool(cancel_flag), events)


@dataclass(frozen=True, slots=True)
class Lease:
    """What a worker holds while it works on a job."""

    job_id: str
    stream: str
    entry: str
    epoch: int


def append(partition: Partition, items: Iterable[tuple[Lease, TokenEvent]]) -> Call:
    keys: list[str] = []
    args: list[Arg] = []
    for lease, event in items:
        keys += (partition.state(lease.job_id), partition.tokens(lease.job_id))
        args += (
            lease.epoch,
            event.index,
            len(event.token_ids),
            partition.channel(lease.job_id),
            encode_event(event),
        )
    return Call(load("append"), keys, args)


def finish(
    partition: Partition, items: Iterable[tuple[Lease, Event]], *, now_ms: int, ttl_s: int
) -> Call:
    keys: list[str] = [partition.load]
    args: list[Arg] = [GROUP, now_ms, ttl_s]
    for lease, event in items:
        keys += (lease.stream, partition.state(lease.job_id), partition.tokens(lease.job_id))
        args += (
            lease.epoch,
            event.index,
            event.type,  # a terminal event's type is the job's status
            lease.entry,
            partition.channel(lease.job_id),
            encode_event(event),
        )
    return Call(load("finish"), keys, args)


def renew(stream: str, consumer: str, entries: Iterable[str]) -> Call:
    return Call(load("renew"), [stream], [GROUP, consumer, *entries])


def release(
    partition: Partition, stream: str, consumer: str, jobs: Sequence[tuple[str, str]]
) -> Call:
    """`jobs`: (job id, entry) pairs of `stream`."""
    return Call(
        load("release"),
        [stream, *(partition.state(job_id) for job_id, _ in jobs)],
        [GROUP, consumer, *(entry for _, entry in jobs)],
    )


def dead_letter(
    partition: Partition,
    stream: str,
    entry: str,
    consumer: str,
    *,
    raw: bytes,
    code: str,
    message: str,
    failed: tuple[str, bytes] | None,
    keep: int,
    now_ms: int,
    ttl_s: int,
) -> Call:
    """`failed`: the job id and its encoded terminal event, where the id could be read."""
    keys = [stream, partition.dead]
    args: list[Arg] = [GROUP, consumer, entry, code, message, raw, keep, now_ms, ttl_s]
    if failed is not None:
        job_id, event = failed
        keys += [partition.state(job_id), partition.tokens(job_id), partition.load]
        args += [job_id, partition.channel(job_id), event]
    return Call(load("dead_letter"), keys, args)


def now_ms() -> int:
    """Unix milliseconds: the clock of every time in the protocol."""
    return int(time.time() * 1000)


def _or_empty(value: int | None) -> int | str:
    return "" if value is None else value
