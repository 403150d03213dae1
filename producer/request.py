"""From a caller's words to a job on the wire: everything about submitting that needs no Redis."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from producer.settings import ProducerSettings
from protocol import (
    ChatMessage,
    JobSpec,
    Partition,
    Priority,
    Sampling,
    encode_job,
    new_job_id,
    partition_of,
    validated,
)
from protocol.calls import Call, SubmitLimits, now_ms, submit, submitted_id
from rose_errors import InvalidParameter, RoseError

PromptLike = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its options, for `submit_many`.

    `deadline_s` counts from now. The same `idempotency_key` again returns the first job. `sampling`
    holds the fields of `protocol.Sampling` (max_new_tokens, temperature, seed, stop, ...).
    """

    prompt: PromptLike
    priority: Priority | str = Priority.NORMAL
    deadline_s: float | None = None
    metadata: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    idempotency_key: str | None = None
    job_id: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


def prepare_all(requests: Iterable[Request | PromptLike], settings: ProducerSettings) -> list[Call]:
    """Raises:
    InvalidParameter, JobTooLarge: nothing was sent.
    """
    return [
        _prepare(request if isinstance(request, Request) else Request(request), settings)
        for request in requests
    ]


def collect_ids(replies: Iterable[list[bytes]], ids: list[str], settings: ProducerSettings) -> None:
    """Add the ids of a chunk of submitted jobs to `ids`.

    Raises:
        QueueFull, PromptTooLong: the first refusal; its `accepted` are all of `ids`.
    """
    refused: RoseError | None = None
    for reply in replies:
        try:
            ids.append(submitted_id(reply, _limits(settings)))
        except RoseError as error:
            refused = refused or error
    if refused is not None:
        refused.accepted = tuple(ids)
        raise refused


def _prepare(request: Request, settings: ProducerSettings) -> Call:
    now = now_ms()
    job = _spec(request, settings, now)
    return submit(
        Partition(settings.queue, partition_of(job.id)),
        job,
        encode_job(job),
        priority=_priority(request.priority),
        limits=_limits(settings),
        idempotency_key=request.idempotency_key,
        idempotency_ttl_s=settings.idempotency_ttl_s,
        now_ms=now,
    )


def _limits(settings: ProducerSettings) -> SubmitLimits:
    return SubmitLimits(settings.max_queued_jobs, settings.max_queued_tokens)


def _spec(request: Request, settings: ProducerSettings, now: int) -> JobSpec:
    if request.deadline_s is not None and not 0 < request.deadline_s < 1e9:
        raise InvalidParameter(f"deadline_s: must be a positive number (got {request.deadline_s})")
    if request.idempotency_key == "":
        raise InvalidParameter("idempotency_key: must not be empty; leave it out for none")
    deadline_ms = None if request.deadline_s is None else now + int(request.deadline_s * 1000)
    return validated(
        lambda: JobSpec(
            id=request.job_id or new_job_id(_partition(request, settings)),
            prompt=request.prompt,  # type: ignore[arg-type]  # validated: sequences become tuples
            sampling=Sampling(**request.sampling),
            deadline_ms=deadline_ms,
            metadata=dict(request.metadata),
        )
    )


def _partition(request: Request, settings: ProducerSettings) -> int:
    if request.idempotency_key is None:
        return random.randrange(settings.partitions)  # noqa: S311 - spreads load, no secret
    # The same key must meet the same partition, where its first job is remembered.
    return zlib.crc32(request.idempotency_key.encode()) % settings.partitions


def _priority(value: Priority | str) -> Priority:
    try:
        return Priority(value)
    except ValueError:
        known = ", ".join(priority.value for priority in Priority)
        raise InvalidParameter(f"priority: {value!r} is none of {known}") from None
