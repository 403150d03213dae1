"""The jobs of requests: submitted and followed, found again, and those that each key has had."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from rose import transport
from rose.errors import BrokerUnavailable, JobNotFound, PromptTooLong, RoseError, TenantLimited
from rose.formats.families.generic import with_tools_as_text
from rose.formats.families.kimi import with_own_ids
from rose.formats.registry import GENERIC, KIMI
from rose.protocol import Priority, new_job_id
from rose.protocol.status import check_job_id
from rose_gateway.access.authentication import JOB_ID_HEADER, Caller, current_request
from rose_gateway.access.limits import Limits, QueuedJob
from rose_gateway.errors import ApiError, job_error
from rose_gateway.jobs.job_group import Burst as Burst
from rose_gateway.jobs.job_group import EndpointKind, Record
from rose_gateway.jobs.job_group import JobGroup as JobGroup
from rose_gateway.metrics import Metrics
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.pacing import LoopPacer
from rose_gateway.requests import warnings as warning_header
from rose_gateway.storage.conversations import Conversations, Link, Turn
from rose_gateway.storage.webhook_repository import Owing, WebhookRepository
from rose_producer import AsyncClient, AsyncJob, JobRecord, Request
from rose_producer.request import PromptLike, choose_partition, prepare_all

log = logging.getLogger("rose.gateway")

#: Of one owner; the oldest go.
MAX_JOBS = 1000
#: Longer than any result is kept.
_KEPT_S = 30 * 24 * 3600


class History:
    """Belongs to one event loop."""

    def __init__(self, redis: transport.AsyncRedisClient) -> None:
        self._redis = redis

    async def add(self, owner: str, job: QueuedJob) -> None:
        """A repeat stays where it was. A request does not fail because it cannot be noted."""
        key = _key(owner)
        # The clock of this gateway orders the list and decides nothing.
        now_ms = time.time_ns() // 1_000_000
        try:
            with transport.broker_errors():
                await self._redis.exchange(
                    [
                        ("ZADD", key, "NX", now_ms, job.member),
                        ("ZREMRANGEBYRANK", key, 0, -1 - MAX_JOBS),
                        ("EXPIRE", key, _KEPT_S),
                    ]
                )
        except BrokerUnavailable as error:
            log.warning("cannot note a job in the history of its owner: %s", error)

    async def jobs(self, owner: str) -> list[QueuedJob]:
        """The newest first. Raises: BrokerUnavailable"""
        with transport.broker_errors():
            members = await self._redis.execute("ZREVRANGE", _key(owner), 0, -1)
        return [QueuedJob.of(member.decode()) for member in members]

    async def forget(self, owner: str, jobs: Iterable[QueuedJob]) -> None:
        """Raises: BrokerUnavailable"""
        members = [job.member for job in jobs]
        if members:
            with transport.broker_errors():
                await self._redis.execute("ZREM", _key(owner), *members)


def _key(owner: str) -> str:
    """Sorted set: `queue:job` by when it was submitted."""
    return f"rose:gateway:history:{{{owner}}}"


@dataclass(frozen=True, slots=True)
class Submission:
    """What an endpoint submits to the queue. `record.choices` jobs answer it."""

    model: ServedModel
    prompt: PromptLike
    record: Record
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """fields of SamplingParams; a seed is raised by one for each further choice"""
    tools: Sequence[Mapping[str, Any]] = ()
    """definitions of functions, for the chat template"""
    priority: Priority | None = None
    """None: normal, or the highest that the caller may have"""
    deadline_s: float | None = None
    metadata: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    idempotency_key: str | None = None
    """the whole of it: no other caller can have it"""
    prompts: Sequence[PromptLike] = ()
    """of each choice, where they differ; `prompt` is the first then"""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """further variables of the chat template"""
    cache_salt: str | None = None
    """within the caller's tenant, or its key"""
    turn: Turn | None = None
    """the response that it goes on from"""
    prompt_only: Literal["count", "ids"] | None = None
    """nothing is generated: the end says how many tokens the prompt has, and which"""
    session: str | None = None
    """what the client calls the conversation"""
    continues: bool = False
    """the last message is the assistant's, and the answer continues it"""
    encodes: Sequence[Mapping[str, Any]] = ()
    """of each choice: numbers instead of tokens; see `Request.encode`"""


class Jobs:
    """Belongs to one event loop."""

    def __init__(
        self,
        clients: Mapping[str, AsyncClient],
        redis: transport.AsyncRedisClient,
        metrics: Metrics,
        history: History,
        conversations: Conversations,
        webhooks: WebhookRepository,
    ) -> None:
        """`clients`: by queue."""
        self._clients = dict(clients)
        self._history = history
        self._conversations = conversations
        self._webhooks = webhooks
        self._metrics = metrics
        self._pacer = LoopPacer()
        self.limits = Limits(redis, metrics, self._status_of)

    async def submit(
        self, caller: Caller, submission: Submission, *, listed: bool = True
    ) -> JobGroup:
        """Enqueue all choices, or none. `listed`: it shows in its owner's history.

        Raises:
            InvalidRequest, QueueFull, TenantLimited, BrokerUnavailable
            ApiError: 400: the prompt is too long; 403: the caller may not use this model or
                priority; 409: the idempotency key came with another body; 429: a limit of the
                caller's key.
        """
        submission = _permitted(caller, submission)
        link = None
        if submission.turn is not None:
            link = await self._conversations.claim(submission.turn)
            record = replace(submission.record, link=link)
            submission = replace(submission, record=record)
        try:
            group = await self._submit(caller, submission, listed=listed)
        except BrokerUnavailable:  # it may have been enqueued
            raise
        except Exception:
            await self._unclaim(link)
            raise
        if group.repeated:
            await self._unclaim(link)
        context = current_request()
        context.job_id = context.headers[JOB_ID_HEADER] = group.id
        if warnings := group.own_record.warnings:
            context.headers[warning_header.HEADER] = warning_header.header_of(warnings)
        return group

    async def _submit(self, caller: Caller, submission: Submission, *, listed: bool) -> JobGroup:
        queue = submission.model.queue
        submission = _as_its_template_reads(_permitted(caller, submission))
        client = self._clients[queue]
        partition = choose_partition(
            submission.idempotency_key,
            client.settings,
            client.spread,
            submission.prompt,
            submission.session,
        )
        first = new_job_id(partition)
        make = partial(self._request, caller, submission)
        ids = _choice_ids(first, submission.record.choices)
        requests = [make(number, job_id) for number, job_id in enumerate(ids)]
        counted = [QueuedJob(queue, job_id) for job_id in ids]
        await self.limits.take(caller, _tokens(caller, requests, client), counted)
        group, owing = None, None
        try:
            if listed:
                owing = await self._watch(caller, submission, counted[0])
            if submission.idempotency_key is None:
                group = await self._submit_all(caller, submission, requests, listed=listed)
            else:
                group = await self._submit_once(
                    caller, submission, requests[0], make, listed=listed
                )
        except (BrokerUnavailable, asyncio.CancelledError):  # it may have been enqueued
            owing = None
            raise
        except TenantLimited:
            self._metrics.limit_hit("tenant")
            raise
        except PromptTooLong as error:
            raise job_error(error, submission.record.endpoint) from None
        finally:
            if group is None or group.repeated:
                await self._forget(caller, counted)
                if owing is not None:
                    await self._owes_nothing(owing)
        return group

    async def _watch(self, caller: Caller, submission: Submission, job: QueuedJob) -> Owing | None:
        """Webhooks are told of the end of a background response, which nobody need wait for. It is
        noted before the job is there: a gateway may die in between."""
        record = submission.record
        is_told = record.endpoint == "response" and record.background
        if is_told and await self._webhooks.is_owed(caller.key_id):
            return await self._webhooks.watch(job.queue, job.job_id, caller.key_id)
        return None

    async def _owes_nothing(self, owing: Owing) -> None:
        with contextlib.suppress(BrokerUnavailable):  # then it is looked for in vain, for a while
            await self._webhooks.forget(owing)

    async def _unclaim(self, link: Link | None) -> None:
        """No response has come of it, so none goes on from the one before."""
        if link is not None:
            with contextlib.suppress(BrokerUnavailable):  # then it expires
                await self._conversations.forget(link.claim, link)

    async def find(
        self, caller: Caller, job_id: str, endpoint: EndpointKind | None = None
    ) -> JobGroup:
        """`endpoint`: by which it must have been requested.

        Raises:
            JobNotFound: there is none, it is another's, or it was not to be stored.
            BrokerUnavailable, MalformedMessage
        """
        check_job_id(job_id)
        found = await asyncio.gather(
            *(_state_of(client.job(job_id)) for client in self._clients.values())
        )
        for (queue, client), state in zip(self._clients.items(), found, strict=True):
            if state is None or state.owner != caller.key_id:
                continue
            record = Record.decode(state.record) if state.record else None
            if record is None and endpoint is not None:
                continue
            if record is not None and (not record.store or endpoint not in (None, record.endpoint)):
                continue
            ids = _choice_ids(job_id, record.choices if record else 1)
            jobs = [client.job(id_) for id_ in ids]
            current_request().job_id = job_id
            return self._job_group(caller, queue, jobs, state, record)
        raise JobNotFound(f"no job {job_id}: never submitted, deleted, or expired")

    async def _submit_all(
        self,
        caller: Caller,
        submission: Submission,
        requests: Sequence[Request],
        *,
        listed: bool,
    ) -> JobGroup:
        queue = submission.model.queue
        jobs = await _all_or_none(self._clients[queue], requests)
        state, _ = await asyncio.gather(
            jobs[0].record(), self._add_to_history(caller, submission, jobs[0].id, listed=listed)
        )
        return self._job_group(caller, queue, jobs, state, submission.record)

    async def _submit_once(
        self,
        caller: Caller,
        submission: Submission,
        first: Request,
        make: Callable[[int, str], Request],
        *,
        listed: bool,
    ) -> JobGroup:
        """The first job is enqueued under the key. The ids of the others follow from its own, so
        that a repeat enqueues none twice, and those that a lost gateway left out."""
        queue = submission.model.queue
        client = self._clients[queue]
        job, state = await client.submit_recorded(first)
        earlier = Record.decode(state.record)
        if (earlier.endpoint, earlier.body_sha256) != (
            submission.record.endpoint,
            submission.record.body_sha256,
        ):
            raise ApiError(
                409,
                "this Idempotency-Key came before with another request: use a new key",
                code="idempotency_key_in_use",
                type="idempotency_error",
            )
        await self._add_to_history(caller, submission, job.id, listed=listed)
        ids = _choice_ids(job.id, earlier.choices)[1:]
        others = [make(number, job_id) for number, job_id in enumerate(ids, start=1)]
        jobs = [job, *await _all_or_none(client, others, with_them=[job])]
        repeated = job.id != first.job_id
        return self._job_group(caller, queue, jobs, state, earlier, repeated=repeated)

    async def _add_to_history(
        self, caller: Caller, submission: Submission, job_id: str, *, listed: bool
    ) -> None:
        if listed and submission.record.store:
            job = QueuedJob(submission.model.queue, job_id)
            await self._history.add(caller.key_id, job)

    def _job_group(
        self,
        caller: Caller,
        queue: str,
        jobs: Sequence[AsyncJob],
        state: JobRecord,
        record: Record | None,
        *,
        repeated: bool = False,
    ) -> JobGroup:
        async def on_end(job_ids: Sequence[str]) -> None:
            if caller.limits.max_jobs is not None:
                ended = [QueuedJob(queue, job_id) for job_id in job_ids]
                await self.limits.give_back(caller.key_id, ended)

        async def on_delete() -> None:
            if record and record.endpoint == "response" and (record.store or record.link):
                await self._conversations.forget(jobs[0].id, record.link)

        return JobGroup(
            jobs,
            state,
            record,
            repeated=repeated,
            on_end=on_end,
            on_delete=on_delete,
            metrics=self._metrics,
            pacer=self._pacer,
        )

    async def _forget(self, caller: Caller, jobs: Sequence[QueuedJob]) -> None:
        """They were counted, and are not in the queue."""
        if caller.limits.max_jobs is not None:
            with contextlib.suppress(BrokerUnavailable):  # then they are looked up later
                await self.limits.give_back(caller.key_id, jobs)

    async def _status_of(self, job: QueuedJob) -> str | None:
        client = self._clients.get(job.queue)
        if client is None:
            return "running"  # another gateway serves that queue
        state = await _state_of(client.job(job.job_id))
        return None if state is None else state.status

    def _request(
        self,
        caller: Caller,
        submission: Submission,
        number: int,
        job_id: str,
    ) -> Request:
        sampling = dict(submission.sampling)
        if number and sampling.get("seed") is not None:
            sampling["seed"] += number
        prompts = submission.prompts
        return Request(
            prompts[number] if prompts else submission.prompt,
            submission.priority or Priority.NORMAL,
            submission.deadline_s,
            submission.metadata,
            submission.idempotency_key if number == 0 else None,
            job_id,
            sampling,
            record=submission.record.encode() if number == 0 else b"",
            owner=caller.key_id,
            tools=submission.tools,
            adapter=submission.model.adapter,
            tenant=caller.tenant or None,
            chat_template_kwargs=submission.chat_template_kwargs,
            cache_salt=submission.cache_salt,
            prompt_only=submission.prompt_only,
            continue_final_message=submission.continues,
            session=submission.session,
            encode=submission.encodes[number] if submission.encodes else None,
        )


def _as_its_template_reads(submission: Submission) -> Submission:
    """For a model whose chat template knows no tools, or shows the ids of calls."""
    prompt, tool_format = submission.prompt, submission.model.tool_format
    if tool_format not in (GENERIC, KIMI) or isinstance(prompt, str):
        return submission
    messages = [message for message in prompt if isinstance(message, Mapping)]
    if not (
        submission.tools
        or any("tool_calls" in one or one.get("role") == "tool" for one in messages)
    ):
        return submission
    if tool_format == KIMI:
        return replace(submission, prompt=with_own_ids(messages))
    return replace(submission, prompt=with_tools_as_text(messages, submission.tools), tools=())


def _permitted(caller: Caller, submission: Submission) -> Submission:
    """With the priority that it gets.

    Raises:
        ApiError: 403
    """
    if not (caller.may_use(submission.model.name) or caller.may_use(submission.record.model)):
        raise ApiError(
            403,
            f"this API key may not use the model {submission.record.model!r}",
            param="model",
            code="model_not_allowed",
            type="permission_error",
        )
    if submission.priority is None:
        highest = caller.limits.max_priority
        normal_or_less = max(Priority.NORMAL, highest, key=lambda priority: priority.level)
        return replace(submission, priority=normal_or_less)
    if not caller.may_have(submission.priority):
        raise ApiError(
            403,
            f"this API key may not ask for the priority {submission.priority.value}: "
            f"its highest is {caller.limits.max_priority.value}",
            code="priority_not_allowed",
            type="permission_error",
        )
    return submission


def _tokens(caller: Caller, requests: Sequence[Request], client: AsyncClient) -> int:
    """What they may take, estimated; 0 where nobody counts."""
    if caller.limits.tokens_per_minute is None:
        return 0
    return sum(job.cost for job in prepare_all(requests, client.settings))


def _choice_ids(first: str, choices: int) -> list[str]:
    return [first, *(f"{first}.{number}" for number in range(1, choices))]


async def _all_or_none(
    client: AsyncClient, requests: Sequence[Request], with_them: Iterable[AsyncJob] = ()
) -> list[AsyncJob]:
    """Raises: as `submit_many`; what it had enqueued and `with_them` are cancelled then."""
    if not requests:
        return []
    try:
        return await client.submit_many(requests)
    except RoseError as error:
        for job in (*with_them, *map(client.job, error.accepted)):
            await job.cancel()
        raise


async def _state_of(job: AsyncJob) -> JobRecord | None:
    try:
        return await job.record()
    except JobNotFound:
        return None
