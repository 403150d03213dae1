"""The asyncio client and its handle of a job. The blocking one calls it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from rose import transport
from rose.errors import (
    AnswerChanged,
    ConfigurationError,
    InvalidParameter,
    JobNotFound,
    RoseError,
)
from rose.protocol import Partition, Priority, partition_of
from rose.protocol.calls import Call, Submission, cancel, delete, end_late, queue_status
from rose.protocol.keys import QUEUES
from rose.protocol.status import (
    RECORD_FIELDS,
    STATUS_FIELDS,
    JobRecord,
    JobStatus,
    QueueStatus,
    ServedModel,
    check_job_id,
    job_not_found,
    read_queue_status,
    read_queues,
    read_record,
    read_status,
)
from rose.protocol.tenants import TenantsStatus
from rose.protocol.vocabulary import decode_vocabulary
from rose.sampling import SamplingOptions
from rose.transport.event_loop import LoopGuard
from rose_producer.cursor import CHUNK, FIRST_CHUNK, LogCursor, LogRead, Patience
from rose_producer.embeddings import Embeddings, encode_requests, joined
from rose_producer.request import (
    Batch,
    Enqueued,
    InputLike,
    PriorityLike,
    PromptLike,
    Request,
    Spread,
    batches,
    prepare_all,
)
from rose_producer.results import AsyncBursts, AsyncEvents, Result, ResultBuilder
from rose_producer.served import SILENT_S, Served
from rose_producer.tenant_status import top_tenants

if TYPE_CHECKING:
    from rose.transport.pipeline import Command
    from rose_producer.settings import ProducerOptions, ProducerSettings


T = TypeVar("T")
R = TypeVar("R")

#: Reads of logs at a time in a partition, each of up to a thousand events: of thousands of streams
#: that begin at once, or that have lost their connection together.
_READS = 50


def read_limits() -> defaultdict[int, asyncio.Semaphore]:
    """By partition: the streams of a silent node must not hold up those of the others."""
    return defaultdict(lambda: asyncio.Semaphore(_READS))


class Once:
    """Work that is done once for all callers. After a failure all waiting callers get the error,
    and the next caller starts again."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._attempt: asyncio.Future[None] | None = None

    async def done(self) -> None:
        """Raises: what the work raises."""
        attempt = self._attempt
        if attempt is None or (attempt.done() and _failed(attempt)):
            attempt = self._attempt = asyncio.ensure_future(self._work())
            attempt.add_done_callback(_failed)  # each who waits may have given up
        await asyncio.shield(attempt)


def _failed(attempt: asyncio.Future[None]) -> bool:
    return attempt.cancelled() or attempt.exception() is not None


async def sent_ahead(
    items: Iterator[T], send: Callable[[T], Awaitable[R]]
) -> AsyncIterator[tuple[T, R]]:
    """Yield each item with its reply. One item is in flight at a time, in order. Meanwhile the item
    after the next one is prepared."""
    item, following = next(items, None), next(items, None)
    while item is not None and following is not None:
        sent = asyncio.ensure_future(send(item))
        try:
            await asyncio.sleep(0)  # lets the task start
            third = next(items, None)
            reply = await sent
        finally:
            sent.cancel()
        yield item, reply
        item, following = following, third
    if item is not None:
        yield item, await send(item)


#: Workers look after the keys of their queue every 5 s.
_MENDED_S = 10.0


def given_settings(
    settings: ProducerSettings | None, overrides: Mapping[str, Any]
) -> ProducerSettings:
    """Raises: ConfigurationError"""
    if settings is None:
        # Here, because pydantic-settings is a third of the time that importing a client takes.
        from rose_producer.settings import ProducerSettings

        return ProducerSettings(**overrides)
    if not hasattr(settings, "redis_url"):
        raise ConfigurationError(
            f"settings: must be ProducerSettings, not {type(settings).__name__}; single ones "
            "have names, as redis_url=..."
        )
    return settings


class AsyncClient:
    """Submits jobs to a queue and reads their tokens.

    Belongs to one event loop. Connects at the first call. Settings come from the environment
    (`ROSE_...`) where they are not given: `AsyncClient(redis_url=..., queue=...)`.
    """

    def __init__(
        self, settings: ProducerSettings | None = None, **overrides: Unpack[ProducerOptions]
    ) -> None:
        self.settings = given_settings(settings, overrides)
        self._loop_guard = LoopGuard()
        self._redis = transport.AsyncRedisClient(self.settings)
        self._scripts = Once(self._load_scripts)
        self._deleting = set[asyncio.Task[None]]()
        self._served = Served(self.settings, self._redis)
        self._spread = Spread(self.settings.partitions)
        self._subscriptions = transport.AsyncSubscriptions(self.settings)
        self._reads = read_limits()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await asyncio.gather(*self._deleting, return_exceptions=True)
        await self._redis.aclose()
        await self._subscriptions.aclose()

    async def submit(
        self,
        prompt: PromptLike,
        *,
        priority: PriorityLike = Priority.NORMAL,
        deadline_s: float | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        idempotency_key: str | None = None,
        job_id: str | None = None,
        record: bytes = b"",
        owner: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        tenant: str | None = None,
        adapter: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        session: str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncJob:
        """Enqueue one prompt (text, chat messages, or token ids).

        `sampling` are the fields of `SamplingParams`: max_new_tokens, temperature, top_k, top_p,
        min_p, seed, stop, shown_special, shown_prompt_end, stop_token_ids, ignore_eos,
        min_new_tokens, repetition_penalty, presence_penalty, frequency_penalty,
        no_repeat_ngram_size, logit_bias, logprobs, top_logprobs, prompt_logprobs, json_schema,
        regex, grammar, grammar_triggers, grammar_once, thought_tags, thought_format,
        thought_budget.
        `tools` are definitions of functions for the chat template. `record` and `owner` are for
        the caller, who reads them again with `AsyncJob.record`. `tenant`: on whose account it
        runs; "" for nobody's, None as the settings say. `adapter` names the LoRA adapter that
        answers, one of those that the workers serve (`model().adapters`). `chat_template_kwargs`
        are variables of the chat template beside messages and tools. Jobs of one tenant with the
        same `cache_salt` share cached prefixes. `session` names the conversation, where workers are
        chosen by what their caches hold.

        Raises:
            InvalidParameter, PromptTooLong, JobTooLarge, QueueFull, TenantLimited
            BrokerUnavailable: if `error.in_doubt` names the job, it may be enqueued; submit it
                again with that `job_id`, and it is not enqueued twice.
        """
        request = Request(
            prompt,
            priority,
            deadline_s,
            metadata or {},
            idempotency_key,
            job_id,
            sampling,
            record,
            owner,
            tools or (),
            tenant,
            adapter,
            chat_template_kwargs or {},
            cache_salt,
            session=session,
        )
        return (await self.submit_many([request]))[0]

    async def submit_many(self, requests: Iterable[Request | PromptLike]) -> list[AsyncJob]:
        """Enqueue many, hundreds to a round trip. All are checked before any is sent.

        Raises:
            as `submit`; `error.accepted` names the jobs that were enqueued before a refusal, and
            `error.in_doubt` those after them of which nobody knows.
        """
        prepared = prepare_all(requests, self.settings, self.spread)
        ids = await self.enqueue(prepared)
        return [AsyncJob(self, job_id) for job_id in ids]

    @property
    def spread(self) -> Spread | None:
        """Of jobs over partitions, where workers are chosen by what they have in their caches; None
        where they are not, as far as it is known."""
        return self._spread if self._served.places else None

    async def enqueue(self, prepared: Sequence[Submission]) -> list[str]:
        """The ids under which they are enqueued. Raises: as `submit_many`."""
        enqueued = Enqueued()
        with enqueued.named_in_errors(), transport.broker_errors():
            self._loop_guard.check()
            await self._scripts.done()
            await self._served.check_partitions()
            waiting = batches(prepared, self.settings)
            async for batch, replies in sent_ahead(waiting, partial(self._send, enqueued)):
                enqueued.collect(batch, replies)
        return enqueued.ids

    async def submit_recorded(self, request: Request) -> tuple[AsyncJob, JobRecord]:
        """Enqueue one, and read what `AsyncJob.record` reads, in one round trip.

        Raises: as `submit`, and JobNotFound: somebody has deleted it since.
        """
        enqueued = Enqueued()
        with enqueued.named_in_errors(), transport.broker_errors():
            self._loop_guard.check()
            await self._scripts.done()
            await self._served.check_partitions()
            prepared = prepare_all([request], self.settings, self.spread)
            (batch,) = batches(prepared, self.settings)
            enqueued.sending(batch)
            (own_id,) = batch.ids
            read = ("HMGET", self._partition(own_id).state(own_id), *RECORD_FIELDS)
            *replies, fields = await self._run_once_mended(batch.calls, read)
            enqueued.collect(batch, replies)
        job = AsyncJob(self, enqueued.ids[0])
        # An earlier submit with this idempotency key has an id of its own; and while a slot of a
        # cluster moves, the read may come before the job.
        if job.id != own_id or fields[0] is None:
            return job, await job.record()
        return job, read_record(own_id, fields)

    async def embed(
        self,
        inputs: Sequence[InputLike],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        priority: PriorityLike = Priority.NORMAL,
        deadline_s: float | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> Embeddings:
        """The vectors of texts, or of token ids, by a queue whose model embeds.

        They are divided among jobs, which several workers share. `dimensions`: the first ones of
        each vector, for a model that is trained for it. `prompt_name`: which of the model's prompts
        each text begins with; "" for none, None as the model's files say. `truncate` cuts texts
        that are too long, which are refused otherwise. Each job is deleted when its answer has been
        read, or given up; with an `idempotency_key` it is kept, and a repeat computes nothing.

        Raises:
            as `submit` and `AsyncJob.result`
        """
        options = Request("", priority, deadline_s, {}, idempotency_key, tenant=tenant)
        encode = {"dimensions": dimensions, "prompt_name": prompt_name, "truncate": truncate}
        several = isinstance(inputs, Sequence) and len(inputs) > 1
        width = dimensions or (await self._served.dimensions() if several else None)
        requests = encode_requests(inputs, width, encode, options)
        return joined(await self._results(requests, timeout_s), len(inputs))

    async def score(
        self,
        query: str | Sequence[str],
        texts: Sequence[str],
        *,
        truncate: bool = True,
        priority: PriorityLike = Priority.NORMAL,
        deadline_s: float | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        timeout_s: float | None = None,
    ) -> list[float]:
        """How well each text fits a query, or its own one of several, by a queue whose model is a
        cross-encoder. The rest is as for `embed`.

        Raises: as `embed`
        """
        options = Request("", priority, deadline_s, {}, idempotency_key, tenant=tenant)
        queries = (query,) if isinstance(query, str) else tuple(query)
        encode = {"task": "score", "queries": queries, "truncate": truncate}
        requests = encode_requests(texts, 1, encode, options)
        rows = joined(await self._results(requests, timeout_s), len(texts)).vectors
        if len(rows[0]) != 1:
            raise InvalidParameter(
                f"texts: the queue's model gives {len(rows[0])} numbers to each pair: it "
                "classifies them, and does not say how well they fit"
            )
        return [row[0] for row in rows]

    async def _results(
        self, requests: Sequence[Request], timeout_s: float | None
    ) -> Sequence[Result]:
        """Of jobs that nobody else asks for."""
        try:
            jobs = await self.submit_many(requests)
        except RoseError as error:
            if requests[0].idempotency_key is None:
                await self._delete(map(self.job, error.accepted))
            raise
        reading = [asyncio.ensure_future(job.result(timeout_s)) for job in jobs]
        try:
            return await asyncio.gather(*reading)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            if requests[0].idempotency_key is None:
                # Nobody waits for that.
                self._deleting.add(deleting := asyncio.create_task(self._delete(jobs)))
                deleting.add_done_callback(self._deleting.discard)

    async def _delete(self, jobs: Iterable[AsyncJob]) -> None:
        with suppress(RoseError):  # then they expire
            await asyncio.gather(*(job.delete() for job in jobs))

    async def _load_scripts(self) -> None:
        await self._redis.load_scripts(["submit"])

    async def _send(self, enqueued: Enqueued, batch: Batch) -> list[Any]:
        enqueued.sending(batch)
        return await self._run_once_mended(batch.calls)

    async def _run_once_mended(self, calls: Sequence[Call], *after: Command) -> list[Any]:
        """Repeats a submit while another program's value lies where the queue has a key: it has
        enqueued nothing then, and a worker makes the key anew."""
        give_up_at = time.monotonic() + _MENDED_S
        while True:
            try:
                return await self._redis.run_many(calls, *after)
            except transport.BROKER_ERRORS as error:
                if not transport.is_overwritten(error) or time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(_MENDED_S / 50)

    def job(self, job_id: str) -> AsyncJob:
        """A handle for a job submitted earlier, or by somebody else.

        Raises: JobNotFound: no job can have this id.
        """
        check_job_id(job_id)
        return AsyncJob(self, job_id)

    async def queue_status(self) -> QueueStatus:
        """Raises: BrokerUnavailable"""
        with transport.broker_errors():
            return await self._status_of(self.settings.queue, self.settings.partitions)

    async def queues(self) -> list[QueueStatus]:
        """Every queue that workers have joined on this Redis, by name.

        Raises: BrokerUnavailable, MalformedMessage
        """
        with transport.broker_errors():
            known = read_queues(await self._redis.execute("HGETALL", QUEUES))
            return [await self._status_of(queue, known[queue]) for queue in sorted(known)]

    async def _status_of(self, queue: str, partitions: int) -> QueueStatus:
        replies = [
            await self._redis.run(queue_status(Partition(queue, index)))
            for index in range(partitions)
        ]
        return read_queue_status(queue, replies)

    async def tenants(self, count: int = 20) -> TenantsStatus:
        """The tenants with the most jobs that have not ended, and those whose jobs have waited
        longest: at most `count` of each partition and kind.

        Raises: InvalidParameter, BrokerUnavailable, MalformedMessage
        """
        partitions = [Partition(self.settings.queue, i) for i in range(self.settings.partitions)]
        return await top_tenants(self._redis, partitions, count)

    async def model(self) -> ServedModel | None:
        """What the workers of the queue serve; None before the first one came.

        Raises: BrokerUnavailable
        """
        return (await self.queue_status()).served

    async def vocabulary(self, model: ServedModel) -> tuple[bytes, ...] | None:
        """The bytes of each token of a model by its id; None if the workers do not keep them.

        A megabyte or so: keep it, by the model's fingerprint.

        Raises:
            InvalidParameter, BrokerUnavailable
            MalformedMessage: somebody else has written there.
        """
        if not isinstance(model, ServedModel):
            raise InvalidParameter(f"model: must be a ServedModel, not {type(model).__name__}")
        if not model.fingerprint:
            return None
        with transport.broker_errors():
            for index in range(self.settings.partitions):
                key = Partition(self.settings.queue, index).vocabulary(model.fingerprint)
                if (packed := await self._redis.execute("GET", key)) is not None:
                    return decode_vocabulary(packed)
        return None

    def _partition(self, job_id: str) -> Partition:
        return Partition(self.settings.queue, partition_of(job_id), self._redis.database)

    async def _read(self, read: LogRead) -> list[Any]:
        async with self._reads[read.partition.index]:
            return await self._redis.exchange(read.commands(CHUNK))


class AsyncJob:
    """A handle: the id, and where to ask. Cheap to make, nothing to close."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self._client = client
        self.id = job_id

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"

    async def stream(self, cursor: int = 0, *, timeout_s: float | None = None) -> AsyncEvents:
        """Every event after `cursor`, once each and in order; the last one is terminal.

        `cursor` is a token count, as `event.cursor` gives it: 0 for all from the beginning.
        Lost connections and restarts of Redis or of the worker show as a pause. A consumer that
        stops early closes it: `async with aclosing(job.stream()) as events`.

        Raises:
            JobNotFound, InvalidCursor, BrokerUnavailable
            AnswerChanged: Redis has lost what was delivered, and the job's answer is another now.
            ResultTimeout: `timeout_s` is over; the job continues.
        """
        async with aclosing(self.bursts(cursor, timeout_s=timeout_s)) as bursts:
            async for burst in bursts:
                for event in burst:
                    yield event

    async def bursts(self, cursor: int = 0, *, timeout_s: float | None = None) -> AsyncBursts:
        """As `stream`, those events together that are there already. None is empty.

        Raises: as `stream`
        """
        self._client._loop_guard.check()
        position = LogCursor(cursor)
        settings = self._client.settings
        patience = Patience(
            self.id, timeout_s, settings.poll_interval_s, settings.max_poll_interval_s
        )
        outage = transport.Outage(transport.STREAM, settings.reconnect_timeout_s)
        partition = self._client._partition(self.id)
        read, channel = LogRead(partition, self.id, position), partition.channel(self.id)
        with transport.broker_errors():
            while not position.ended:
                try:
                    first = read.commands(FIRST_CHUNK)
                    async with self._client._subscriptions.listen(channel, first) as inbox:
                        async with aclosing(self._replay(read, inbox.found)) as log:
                            async for burst in log:
                                outage.end()
                                yield burst
                        # The connection works again, though the job may be silent for long.
                        outage.end()
                        patience.restart()
                        if read.has_deadline and not position.ended:
                            patience.note_deadline(await self._end_if_late(position.position))
                        if position.position == cursor and not position.ended:
                            await self._wait_for_worker(inbox, read, patience)
                        # Nearly all tokens pass here: each additional generator or call adds to
                        # the cost of each.
                        while not position.ended:
                            message = await inbox.get(patience.wait_s())
                            news, gap = position.judge_all_live(message, inbox.get_ready)
                            if news:
                                patience.restart()
                                yield news
                            if gap:
                                before = position.position
                                if message is None:
                                    await self._look_after(read)
                                if patience.job_is_late:
                                    patience.note_deadline(await self._end_if_late(before))
                                async with aclosing(self._replay(read)) as log:
                                    async for burst in log:
                                        yield burst
                                if position.position > before:
                                    patience.restart()
                                elif message is None:
                                    patience.found_nothing()
                except transport.CONNECTION_LOST as error:
                    position.doubt()  # the server that answers next may know less
                    await asyncio.sleep(outage.next_pause_s(error))
                    patience.wait_s()

    async def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the whole answer.

        Raises:
            JobFailed, JobCancelled, DeadlineExceeded, PromptTooLong, InvalidParameter: it ended so
            JobNotFound, BrokerUnavailable, ResultTimeout
        """
        builder = ResultBuilder(self.id)
        try:
            async with aclosing(self.bursts(timeout_s=timeout_s)) as bursts:
                async for burst in bursts:
                    for event in burst:
                        if (result := builder.add(event)) is not None:
                            return result
        except AnswerChanged:  # nobody has seen what was read
            return await self.result(timeout_s)
        raise JobNotFound(f"job {self.id} ended without a terminal event")

    async def status(self) -> JobStatus:
        """Raises: JobNotFound, BrokerUnavailable"""
        return read_status(self.id, await self._state(STATUS_FIELDS))

    async def record(self) -> JobRecord:
        """The submitter's record and owner of the job, and its status.

        Raises: JobNotFound, BrokerUnavailable
        """
        return read_record(self.id, await self._state(RECORD_FIELDS))

    async def cancel(self) -> bool:
        """Ask for the job to stop; False when it had ended already.

        A waiting job ends at once, a running one within a step of its worker.

        Raises:
            JobNotFound, BrokerUnavailable
        """
        outcome = await self._run(cancel)
        if outcome == b"UNKNOWN":
            raise job_not_found(self.id)
        return bool(outcome != b"ENDED")

    async def delete(self) -> bool:
        """Delete the job, its tokens and its record; False where there is nothing to delete.

        One that has ended goes at once. One that waits or runs is cancelled and goes soon after its
        end; its record is gone at once. A dead letter of it stays. A repeat does no harm.

        Raises: BrokerUnavailable
        """
        return bool(await self._run(delete) != b"UNKNOWN")

    async def _state(self, names: Sequence[str]) -> list[Any]:
        """These fields of its state."""
        key = self._client._partition(self.id).state(self.id)
        read = ("HMGET", key, *names, "deadline_ms", "status", "tokens")
        with transport.broker_errors():
            fields: list[Any]
            *fields, deadline, status, tokens = await self._client._redis.execute(*read)
            ends = deadline is not None and status in (b"queued", b"running")
            logged = tokens or b"0"
            if ends and logged.isdigit() and await self._end_if_late(int(logged)) is None:
                *fields, _, _, _ = await self._client._redis.execute(*read)
        return fields

    async def _end_if_late(self, logged: int) -> float | None:
        """End the job if its deadline has passed and no worker does. Returns the seconds until it
        may have; None if it has ended, or has none. `logged`: tokens in its log."""
        ttl_s = self._client.settings.result_ttl_s
        call = end_late(self._client._partition(self.id), self.id, logged, ttl_s=ttl_s)
        left_ms: int = await self._client._redis.run(call)
        return left_ms / 1000 or None

    async def _wait_for_worker(
        self, inbox: transport.Inbox, read: LogRead, patience: Patience
    ) -> None:
        """Of a job that has no token yet: say if there is nobody to begin on it."""
        if await inbox.is_silent(min(SILENT_S, patience.wait_s())):
            await self._look_after(read)

    async def _look_after(self, read: LogRead) -> None:
        """Of a job that is silent: say if there is nobody to begin on it.

        Raises: JobNotFound: it waited in a stream that is gone.
        """
        partition = read.partition
        await self._client._served.warn_if_not(partition)
        if not read.is_queued:
            return
        state = partition.state(self.id)
        status, stream, entry = await self._client._redis.execute(
            "HMGET", state, "status", "stream", "entry"
        )
        if status != b"queued" or not stream or not entry:
            return
        (begun,) = await self._client._redis.execute("HMGET", partition.model, b"begun:" + stream)
        enqueued, _, _ = entry.partition(b"-")
        if begun and begun.isdigit() and enqueued.isdigit() and int(enqueued) < int(begun):
            raise JobNotFound(
                f"job {self.id} waited in the stream {stream.decode()}, which somebody has deleted "
                "or overwritten: submit it again"
            )

    async def _run(self, script: Callable[..., Call]) -> Any:
        """`cancel` or `delete`."""
        ttl_s = self._client.settings.result_ttl_s
        call = script(self._client._partition(self.id), self.id, ttl_s=ttl_s)
        with transport.broker_errors():
            return await self._client._redis.run(call)

    async def _replay(self, read: LogRead, found: list[Any] | None = None) -> AsyncBursts:
        """What the log has after the cursor. `found`: the replies for its first chunk, where
        they are there already. Events that are logged meanwhile come live, too."""
        count, is_all = FIRST_CHUNK, False
        while not is_all:
            if found is None:
                count, found = CHUNK, await self._client._read(read)
            for news, has_no_more in read.new_events(found, count):
                is_all = has_no_more
                if news:
                    yield news
            found = None
