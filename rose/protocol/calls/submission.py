"""Jobs on their way into the queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rose.errors import (
    BrokerUnavailable,
    InvalidParameter,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    TenantLimited,
)
from rose.protocol.calls.call import Arg, Call, malformed, ms_until, now_ms, value_or
from rose.protocol.jobs import JobSpec, Priority
from rose.protocol.keys import Partition
from rose.protocol.scripts import load


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
    ) -> Submission:
        """`raw`: the encoded job; `record`, `owner` and `tenant`: checked."""
        prompt = job.prompt
        tokens = len(job.token_ids) or None
        size = len(prompt.encode()) if isinstance(prompt, str) else None
        estimate, deadline = job.token_estimate, job.deadline_ms
        return cls(
            job.id,
            raw,
            estimate,
            priority,
            idempotency_key,
            tokens,
            size,
            deadline,
            record,
            owner,
            tenant,
            estimate - job.sampling.max_new_tokens,
            job.adapter,
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
    if key is None and deadline is None and not owner and adapter is None:
        return ""
    return f" {0 if key is None else 1} {ms_until(deadline, now)} {owner or '-'} {adapter or '-'}"


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
