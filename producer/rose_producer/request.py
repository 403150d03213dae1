"""From a caller's arguments to an encoded job: the parts of submitting that need no Redis."""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from rose.errors import InvalidParameter, MalformedMessage, RedisFull, RoseError
from rose.protocol import (
    ChatMessage,
    JobSpec,
    Partition,
    Priority,
    encode_job,
    job_from,
    new_job_id,
    partition_of,
)
from rose.protocol.calls import (
    Call,
    QueueLimits,
    Submission,
    now_ms,
    refusals,
    submit,
    submitted_id,
)
from rose.protocol.jobs import MAX_CACHE_SALT
from rose.protocol.placement import chain_of
from rose.protocol.status import check_record
from rose.protocol.tenants import check_tenant
from rose.validation import lone_surrogate

if TYPE_CHECKING:
    from rose_producer.settings import ProducerSettings


def is_traced() -> bool:
    """Whether the application traces; asking costs too much for each job."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    # redis-py loads OpenTelemetry wherever it is installed: that says nothing.
    return trace is not None and not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    )


def traceparent(queue: str, job_id: str) -> str | None:
    """A span `create QUEUE` below the caller's, as a W3C `traceparent`, where `is_traced`.

    Named and attributed as OpenTelemetry's conventions for messaging say.
    """
    # Here, because they are imported only for an application that traces.
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes = {
        "messaging.system": "roseinfer",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": queue,
        "messaging.message.id": job_id,
    }
    span = trace.get_tracer("roseinfer").start_span(
        f"create {queue}", kind=trace.SpanKind.PRODUCER, attributes=attributes
    )
    span.end()
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


#: Of one round trip.
_BATCH_JOBS = 500
_BATCH_BYTES = 4 * 1024 * 1024

#: A partition may have had this much more than the mean, and so many jobs; and how many jobs of
#: each are remembered.
_UNEVEN, _FEW_JOBS, _REMEMBERED = 1.25, 4, 500

PriorityLike = Priority | Literal["high", "normal", "low"]
InputLike = str | Sequence[int]
PromptLike = InputLike | Sequence[ChatMessage | Mapping[str, Any]] | Sequence[InputLike]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its options, for `submit_many`.

    `deadline_s` counts from now. The same `idempotency_key` again returns the first job. `sampling`
    holds the fields of `SamplingParams` (max_new_tokens, temperature, seed, stop, ...); here
    `json_schema` may also be a mapping, and `logit_bias` one of token ids to biases.

    `tools` are definitions of functions for the chat template, as OpenAI's API has them:
    `{"type": "function", "function": {"name": ..., "parameters": {...}}}`.

    `chat_template_kwargs` are variables of the model's chat template beside messages and tools,
    such as `{"enable_thinking": False}`.

    `adapter` names the LoRA adapter that answers, one of those that the workers serve.

    `record` (at most 1 MiB) and `owner` (1 to 80 letters, digits, `_`, `.` or `-`) are kept beside
    the job, for as long as it is known, and only `record()` reads them.

    `tenant` (1 to 64 letters, digits, `_`, `.` or `-`): on whose account it runs; "" for nobody's,
    None as the settings say.

    Cached prefixes are shared by the jobs of one tenant only; where `tenant` is None, by those of
    one `owner` in it. `cache_salt` (1 to 256 characters) divides them further.

    `prompt_only` generates nothing: the finished event says how many tokens the prompt has
    (`count`), and which (`ids`).

    `continue_final_message`: the last message is the assistant's, and the answer continues it.

    `session` names the conversation. Where workers are chosen by what their caches hold, it counts
    for a prompt whose beginning no worker has.

    `encode` asks for numbers instead of tokens: the fields of `rose.protocol.jobs.EncodeOptions`.
    The prompt is a text, token ids, or several of these.
    """

    prompt: PromptLike
    priority: PriorityLike = Priority.NORMAL
    deadline_s: float | None = None
    metadata: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    idempotency_key: str | None = None
    job_id: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    record: bytes = b""
    owner: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    tenant: str | None = None
    adapter: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None
    prompt_only: Literal["count", "ids"] | None = None
    session: str | None = None
    continue_final_message: bool = False
    encode: Mapping[str, Any] | None = None


#: Iterable types that are a single prompt or request.
_ONE = (str, bytes, Mapping, Request)

#: Of what is used where pydantic does not look: what it must be, and in words.
_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("deadline_s", (int, float, NoneType), "a number of seconds"),
    ("metadata", (Mapping,), "a mapping"),
    ("job_id", (str, NoneType), "text"),
    ("sampling", (Mapping,), "a mapping of sampling parameters"),
    ("owner", (str,), "text"),
    ("cache_salt", (str, NoneType), "text"),
    ("session", (str, NoneType), "text"),
    ("tenant", (str, NoneType), "text"),
    ("tools", (Sequence,), "a list of definitions"),
    ("chat_template_kwargs", (Mapping,), "a mapping"),
    ("encode", (Mapping, NoneType), "a mapping"),
)


class Spread:
    """Jobs over partitions. Those of a conversation come to one, as long as that gets no more than
    the others."""

    def __init__(self, partitions: int) -> None:
        self._sent = [0.0] * partitions

    def choose(self, conversation: str) -> int:
        """`conversation`: "" for none that is known."""
        sent, mean = self._sent, sum(self._sent) / len(self._sent)
        index = zlib.crc32(conversation.encode(errors="replace")) % len(sent)
        if not conversation or sent[index] > _UNEVEN * mean + _FEW_JOBS:
            index = random.randrange(len(sent))  # noqa: S311 - spreads load, no secret
        sent[index] += 1
        if mean > _REMEMBERED:
            self._sent = [count / 2 for count in sent]
        return index


def conversation_of(prompt: PromptLike, session: str | None) -> str:
    """What stays the same for all of its turns; "" if that is not known."""
    if session or isinstance(prompt, str):
        return session or ""
    for message in prompt:
        if isinstance(message, ChatMessage):
            message = message.model_dump()
        if not isinstance(message, Mapping):
            return ""
        if message.get("role") not in ("system", "developer"):
            return str(message.get("content", ""))
    return ""


def prepare_all(
    requests: Iterable[Request | PromptLike],
    settings: ProducerSettings,
    spread: Spread | None = None,
) -> list[Submission]:
    """`spread`: where workers are chosen by what they have in their caches.

    Raises:
    InvalidParameter, JobTooLarge: nothing was sent.
    """
    if isinstance(requests, _ONE) or not isinstance(requests, Iterable):
        given_type = type(requests).__name__  # the value may be a prompt
        raise InvalidParameter(f"requests: must be several, in a list (got {given_type})")
    now, traced = now_ms(), is_traced()
    prepared, tenants = list[Submission](), set[str]()
    for given in requests:
        request = given if isinstance(given, Request) else Request(given)
        try:
            tenant = settings.tenant if request.tenant is None else request.tenant
            if tenant and tenant not in tenants:
                check_tenant(tenant)
                tenants.add(tenant)
            prepared.append(_prepare(request, tenant, settings, now, traced, spread))
        except (AttributeError, TypeError, ValueError):
            _check_types(request)  # only now: it takes longer than all other checks of a job
            raise
    return prepared


def _prepare(
    request: Request,
    tenant: str,
    settings: ProducerSettings,
    now: int,
    traced: bool,
    spread: Spread | None,
) -> Submission:
    """`tenant`: checked. Raises: InvalidParameter, JobTooLarge"""
    job = _spec(request, tenant, settings, now, traced, spread)
    check_record(request.record, request.owner)
    return Submission.of(
        job,
        encode_job(job),
        _priority(request.priority),
        request.idempotency_key,
        record=request.record,
        owner=request.owner,
        tenant=tenant,
        chain="" if spread is None else chain_of(job, request.session or ""),
    )


def _check_types(request: Request) -> None:
    """Raises: InvalidParameter"""
    for name, types, words in _TYPES:
        if not isinstance(value := getattr(request, name), types):
            given = type(value).__name__
            raise InvalidParameter(f"{name}: must be {words} (got {given})", param=name)


@dataclass(slots=True)
class Batch:
    """Jobs that are sent together: one call for each of their partitions."""

    calls: list[Call]
    _jobs: list[Submission]
    _members: list[list[int]]
    """of each call: the numbers of its jobs"""

    @property
    def ids(self) -> list[str]:
        return [job.job_id for job in self._jobs]

    def collect(self, replies: Iterable[Sequence[Any]], ids: list[str]) -> None:
        """Add the ids under which the jobs are enqueued, from the calls' replies.

        Raises:
            MalformedMessage
            QueueFull, PromptTooLong: the first refusal.
        """
        outcomes: list[str | RoseError] = [job.job_id for job in self._jobs]
        for members, reply in zip(self._members, replies, strict=True):
            for number, refusal in refusals(reply).items():
                try:
                    outcomes[members[number]] = submitted_id(refusal)
                except RoseError as error:
                    outcomes[members[number]] = error
        ids += (outcome for outcome in outcomes if isinstance(outcome, str))
        for outcome in outcomes:
            if isinstance(outcome, RoseError):
                raise outcome


def batches(jobs: Sequence[Submission], settings: ProducerSettings) -> Iterator[Batch]:
    """Calls are bounded in size, so that Redis serves others in between."""
    batch: list[Submission] = []
    size = 0
    for job in jobs:
        if batch and (len(batch) >= _BATCH_JOBS or size + job.size > _BATCH_BYTES):
            yield _batch(batch, settings)
            batch, size = [], 0
        batch.append(job)
        size += job.size
    if batch:
        yield _batch(batch, settings)


class Enqueued:
    """What a bulk submit has enqueued, and what it has sent without an answer so far."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._unanswered: Batch | None = None

    def sending(self, batch: Batch) -> None:
        self._unanswered = batch

    def collect(self, batch: Batch, replies: Iterable[Sequence[Any]]) -> None:
        """Raises: as `Batch.collect`."""
        try:
            batch.collect(replies, self.ids)
        except MalformedMessage:
            raise  # nobody knows
        except RoseError:
            self._unanswered = None
            raise
        self._unanswered = None

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Sets `accepted` and `in_doubt` of an error."""
        try:
            yield
        except RoseError as error:
            error.accepted = tuple(self.ids)
            error.in_doubt = self._in_doubt(error)
            raise

    def _in_doubt(self, error: RoseError) -> tuple[str, ...]:
        batch = self._unanswered
        # A call that was refused for want of memory has enqueued nothing; others of the
        # same batch may have.
        if batch is None or (isinstance(error, RedisFull) and len(batch.calls) == 1):
            return ()
        return tuple(job_id for job_id in batch.ids if job_id not in self.ids)


def _batch(jobs: list[Submission], settings: ProducerSettings) -> Batch:
    members: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        members.setdefault(partition_of(job.job_id), []).append(number)
    limits = QueueLimits(
        settings.max_queued_jobs, settings.max_queued_tokens, settings.max_queued_bytes
    )
    producer = settings.redis_user
    calls = [
        submit(
            Partition(settings.queue, index),
            [jobs[number] for number in numbers],
            limits=limits,
            producer=producer,
        )
        for index, numbers in members.items()
    ]
    return Batch(calls, jobs, list(members.values()))


def _spec(
    request: Request,
    tenant: str,
    settings: ProducerSettings,
    now: int,
    traced: bool,
    spread: Spread | None,
) -> JobSpec:
    if request.deadline_s is not None and not 0 < request.deadline_s < 1e9:
        raise InvalidParameter(f"deadline_s: must be a positive number (got {request.deadline_s})")
    if request.idempotency_key is not None:
        _check_key(request.idempotency_key)
    if request.job_id is not None:
        _check_partition(request.job_id, request, settings)
    deadline_ms = None if request.deadline_s is None else now + int(request.deadline_s * 1000)
    key, prompt, session = request.idempotency_key, request.prompt, request.session
    job_id = request.job_id or new_job_id(choose_partition(key, settings, spread, prompt, session))
    return job_from(
        {
            "id": job_id,
            "prompt": request.prompt,
            # Not as an object: that would be checked a second time.
            "sampling": _on_the_wire(request.sampling),
            "deadline_ms": deadline_ms,
            "metadata": dict(request.metadata),
            "traceparent": traceparent(settings.queue, job_id) if traced else None,
            "tools": tuple(request.tools),
            "adapter": request.adapter,
            "chat_template_kwargs": dict(request.chat_template_kwargs),
            "cache_salt": _cache_salt(request, tenant),
            "prompt_only": request.prompt_only,
            "continue_final_message": request.continue_final_message,
            "encode": None if request.encode is None else dict(request.encode),
        }
    )


def _cache_salt(request: Request, tenant: str) -> str:
    """`TENANT/OWNER/SALT`. Neither a tenant nor an owner has a slash in it, so whatever a caller
    gives as a salt, it is within its own tenant.

    Raises: InvalidParameter
    """
    owner = request.owner if request.tenant is None else ""
    salt = request.cache_salt
    if salt is not None and not 1 <= len(salt) <= MAX_CACHE_SALT:
        raise InvalidParameter(
            f"cache_salt: must have 1 to {MAX_CACHE_SALT} characters (it has {len(salt)})",
            param="cache_salt",
        )
    return f"{tenant}/{owner}/{salt or ''}" if tenant or owner or salt else ""


def _check_key(key: str) -> None:
    """Raises: InvalidParameter"""
    if not isinstance(key, str):
        raise InvalidParameter(f"idempotency_key: must be text (got {key!r})")
    if key == "":
        raise InvalidParameter("idempotency_key: must not be empty; leave it out for none")
    if (where := lone_surrogate(key)) is not None:
        raise InvalidParameter(f"idempotency_key: {where}")


def _check_partition(job_id: str, request: Request, settings: ProducerSettings) -> None:
    """Raises: InvalidParameter: the id names a partition where the job cannot be."""
    named = partition_of(job_id)
    if named >= settings.partitions:
        raise InvalidParameter(
            f"job_id: {job_id!r} is of partition {named}, and the queue has "
            f"{settings.partitions}: begin it with a letter, or with another number"
        )
    if request.idempotency_key is not None and named != (
        own := choose_partition(request.idempotency_key, settings)
    ):
        raise InvalidParameter(
            f"job_id: {job_id!r} is of partition {named}, and its idempotency_key belongs to "
            f"partition {own}: begin the id with '{own}-', or leave one of them out"
        )


# Made once, not at every call.
_SCHEMA_TYPES = (Mapping, bool)


def _on_the_wire(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """With a JSON schema as text and biases as pairs. Raises: InvalidParameter"""
    fields = dict(sampling)
    schema = fields.get("json_schema")
    if isinstance(schema, _SCHEMA_TYPES):
        try:
            fields["json_schema"] = json.dumps(schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParameter(f"json_schema: cannot be written as JSON: {error}") from None
    if isinstance(bias := fields.get("logit_bias"), Mapping):
        fields["logit_bias"] = tuple(bias.items())
    return fields


def choose_partition(
    idempotency_key: str | None,
    settings: ProducerSettings,
    spread: Spread | None = None,
    prompt: PromptLike = "",
    session: str | None = None,
) -> int:
    """The partition of a job whose id names none."""
    if settings.partitions == 1:
        return 0
    if idempotency_key is None:
        if spread is not None:
            return spread.choose(conversation_of(prompt, session))
        return random.randrange(settings.partitions)  # noqa: S311 - spreads load, no secret
    # The same key must meet the same partition, where its first job is remembered.
    return zlib.crc32(idempotency_key.encode()) % settings.partitions


def _priority(value: Priority | str) -> Priority:
    try:
        return Priority(value)
    except ValueError:
        known = ", ".join(priority.value for priority in Priority)
        raise InvalidParameter(f"priority: {value!r} is none of {known}") from None
