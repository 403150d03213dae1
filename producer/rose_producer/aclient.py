"""The asyncio client: the twin of `rose_producer.client`, line for line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

from rose.errors import JobNotFound
from rose.protocol import Event, Partition, Priority, decode_event, partition_of
from rose.protocol.calls import Submission, cancel, now_ms, queue_status
from rose.transport.connection import CONNECTION_LOST, broker_errors, connect_async
from rose.transport.running import exchange, load_scripts_async, run_async, run_many_async
from rose.transport.subscriptions import AsyncSubscriptions
from rose.transport.wire import field_of
from rose_producer.backoff import Patience, Reconnect
from rose_producer.cursor import LogCursor, Verdict
from rose_producer.request import PromptLike, Request, batches, collect, collecting, prepare_all
from rose_producer.results import (
    STATUS_FIELDS,
    JobStatus,
    QueueStatus,
    Result,
    ResultBuilder,
    job_not_found,
    read_queue_status,
    read_standing,
    read_status,
)
from rose_producer.settings import ProducerSettings

#: Log entries per read.
_CHUNK = ("COUNT", 1000)

#: Reads of logs at a time, each with a connection: of thousands of streams that begin at once, or
#: that have lost their connection together.
_READS = 50


class AsyncClient:
    """Submits jobs to a queue and reads their tokens.

    Belongs to one event loop. Connects at the first call. Settings come from the environment
    (`ROSE_...`) where they are not given: `AsyncClient(redis_url=..., queue=...)`.
    """

    def __init__(self, settings: ProducerSettings | None = None, **overrides: Any) -> None:
        self.settings = settings or ProducerSettings(**overrides)
        self._redis = connect_async(self.settings)
        self._has_scripts = False
        self._subscriptions = AsyncSubscriptions(self.settings)
        self._reads = asyncio.Semaphore(_READS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._redis.aclose()
        await self._subscriptions.aclose()

    async def submit(
        self,
        prompt: PromptLike,
        *,
        priority: Priority | str = Priority.NORMAL,
        deadline_s: float | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        idempotency_key: str | None = None,
        job_id: str | None = None,
        **sampling: Any,
    ) -> AsyncJob:
        """Enqueue one prompt (text, chat messages, or token ids).

        `sampling` are the fields of `SamplingParams`: max_new_tokens, temperature, seed, ...

        Raises:
            InvalidParameter, PromptTooLong, JobTooLarge, QueueFull, BrokerUnavailable
        """
        request = Request(
            prompt, priority, deadline_s, metadata or {}, idempotency_key, job_id, sampling
        )
        return (await self.submit_many([request]))[0]

    async def submit_many(self, requests: Iterable[Request | PromptLike]) -> list[AsyncJob]:
        """Enqueue many, hundreds to a round trip. All are checked before any is sent.

        Raises:
            as `submit`; `error.accepted` names the jobs that were enqueued before a refusal.
        """
        prepared = prepare_all(requests, self.settings)
        ids: list[str] = []
        with collecting(ids), broker_errors():
            if not self._has_scripts:
                await load_scripts_async(self._redis, ["submit"])
                self._has_scripts = True
            await self._submit_batches(prepared, ids)
        return [AsyncJob(self, job_id) for job_id in ids]

    async def _submit_batches(self, jobs: Sequence[Submission], ids: list[str]) -> None:
        """One is on its way at a time, in order; while Redis has it, another is made."""
        waiting = batches(jobs, self.settings)
        batch, following = next(waiting, None), next(waiting, None)
        while batch is not None and following is not None:
            sent = asyncio.create_task(run_many_async(self._redis, batch.calls))
            try:
                await asyncio.sleep(0)  # now it is
                third = next(waiting, None)
                collect(batch, await sent, ids, self.settings)
            finally:
                sent.cancel()
            batch, following = following, third
        if batch is not None:
            collect(batch, await run_many_async(self._redis, batch.calls), ids, self.settings)

    def job(self, job_id: str) -> AsyncJob:
        """A handle for a job submitted earlier, or by somebody else."""
        return AsyncJob(self, job_id)

    async def queue_status(self) -> QueueStatus:
        """Raises: BrokerUnavailable"""
        partitions = [Partition(self.settings.queue, i) for i in range(self.settings.partitions)]
        with broker_errors():
            replies = [await run_async(self._redis, queue_status(p)) for p in partitions]
        return read_queue_status(self.settings.queue, replies)

    def _partition(self, job_id: str) -> Partition:
        return Partition(self.settings.queue, partition_of(job_id))

    async def _log_after(self, cursor: LogCursor, job_id: str) -> list[Event]:
        """What the log holds after the cursor, at most a chunk of it."""
        partition = self._partition(job_id)
        async with self._reads:
            standing, entries = await exchange(
                self._redis,
                [
                    ("HMGET", partition.state(job_id), "status", "tokens"),
                    ("XRANGE", partition.tokens(job_id), cursor.log_start, "+", *_CHUNK),
                ],
            )
        if not entries:
            cursor.check_silence(*read_standing(job_id, standing), job_id)
        return [decode_event(field_of(fields, b"event") or b"") for _, fields in entries]


class AsyncJob:
    """A handle: the id, and where to ask. Cheap to make, nothing to close."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self._client = client
        self.id = job_id

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"

    async def stream(
        self, cursor: int = 0, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Every event after `cursor`, once each and in order; the last one is terminal.

        `cursor` is a token count, as `event.cursor` gives it: 0 for all from the beginning.
        Lost connections and restarts of Redis or of the worker show as a pause. A consumer that
        stops early closes it: `async with aclosing(job.stream()) as events`.

        Raises:
            JobNotFound, InvalidCursor, BrokerUnavailable
            ResultTimeout: `timeout_s` is over; the job goes on.
        """
        position = LogCursor(cursor)
        settings = self._client.settings
        patience = Patience(self.id, timeout_s, settings.poll_interval_s)
        outage = Reconnect(settings.reconnect_timeout_s)
        with broker_errors():
            while not position.ended:
                try:
                    async with aclosing(self._follow(position, patience)) as events:
                        async for event in events:
                            outage.progress()
                            yield event
                except CONNECTION_LOST as error:
                    await asyncio.sleep(outage.next_delay_s(error))
                    patience.wait_s()

    async def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the whole answer.

        Raises:
            JobFailed, JobCancelled, DeadlineExceeded, PromptTooLong, InvalidParameter: it ended so
            JobNotFound, BrokerUnavailable, ResultTimeout
        """
        builder = ResultBuilder(self.id)
        async for event in self.stream(timeout_s=timeout_s):
            if (result := builder.add(event)) is not None:
                return result
        raise JobNotFound(f"job {self.id} ended without a terminal event")

    async def status(self) -> JobStatus:
        """Raises: JobNotFound, BrokerUnavailable"""
        with broker_errors():
            state = self._client._partition(self.id).state(self.id)
            command = ("HMGET", state, *STATUS_FIELDS)
            (fields,) = await exchange(self._client._redis, [command])
        return read_status(self.id, fields)

    async def cancel(self) -> bool:
        """Ask for the job to stop; False when it had ended already.

        A waiting job ends at once, a running one within a step of its worker.

        Raises:
            JobNotFound, BrokerUnavailable
        """
        settings = self._client.settings
        call = cancel(
            self._client._partition(self.id),
            self.id,
            now_ms=now_ms(),
            ttl_s=settings.result_ttl_s,
        )
        with broker_errors():
            outcome = await run_async(self._client._redis, call)
        if outcome == b"UNKNOWN":
            raise job_not_found(self.id)
        return bool(outcome != b"ENDED")

    async def _follow(self, position: LogCursor, patience: Patience) -> AsyncGenerator[Event, None]:
        """Subscribe, replay the log, then live: until the job or the connection ends."""
        channel = self._client._partition(self.id).channel(self.id)
        async with self._client._subscriptions.listen(channel) as inbox:
            async for event in self._replay(position):
                yield event
            while not position.ended:
                verdict, news = position.judge_live(await inbox.get(patience.wait_s()))
                if news is not None:
                    yield news
                elif verdict is Verdict.GAP:
                    async for missed in self._replay(position):
                        yield missed

    async def _replay(self, position: LogCursor) -> AsyncGenerator[Event, None]:
        while events := await self._client._log_after(position, self.id):
            for event in events:
                if position.judge_logged(event) is Verdict.NEWS:
                    yield event
            if position.ended:
                return
