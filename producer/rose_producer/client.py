"""The synchronous client. `rose_producer.aclient` is its asyncio twin, line for line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Self

from rose.errors import JobNotFound
from rose.protocol import Event, Partition, Priority, decode_event, partition_of
from rose.protocol.calls import cancel, now_ms, queue_status
from rose.transport.connection import CONNECTION_LOST, SyncRedis, broker_errors, check_url, connect
from rose.transport.running import load_scripts, patiently, run, run_many
from rose.transport.subscription_pool import SubscriptionPool
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
_LOG_CHUNK = 1000


class Client:
    """Submits jobs to a queue and reads their tokens.

    Thread-safe. Connects at the first call. Settings come from the environment (`ROSE_...`)
    where they are not given: `Client(redis_url=..., queue=...)`.
    """

    def __init__(self, settings: ProducerSettings | None = None, **overrides: Any) -> None:
        self.settings = settings or ProducerSettings(**overrides)
        check_url(self.settings)
        self._has_scripts = False
        self._subscriptions = SubscriptionPool(self.settings)

    @cached_property
    def _redis(self) -> SyncRedis:
        return connect(self.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if "_redis" in vars(self):
            self._redis.close()
        self._subscriptions.close()

    def submit(
        self,
        prompt: PromptLike,
        *,
        priority: Priority | str = Priority.NORMAL,
        deadline_s: float | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        idempotency_key: str | None = None,
        job_id: str | None = None,
        **sampling: Any,
    ) -> Job:
        """Enqueue one prompt (text, chat messages, or token ids).

        `sampling` are the fields of `SamplingParams`: max_new_tokens, temperature, seed, ...

        Raises:
            InvalidParameter, PromptTooLong, JobTooLarge, QueueFull, BrokerUnavailable
        """
        request = Request(
            prompt, priority, deadline_s, metadata or {}, idempotency_key, job_id, sampling
        )
        return self.submit_many([request])[0]

    def submit_many(self, requests: Iterable[Request | PromptLike]) -> list[Job]:
        """Enqueue many, hundreds to a round trip. All are checked before any is sent.

        Raises:
            as `submit`; `error.accepted` names the jobs that were enqueued before a refusal.
        """
        prepared = prepare_all(requests, self.settings)
        ids: list[str] = []
        with collecting(ids), broker_errors():
            if not self._has_scripts:
                load_scripts(self._redis, ["submit"])
                self._has_scripts = True
            for batch in batches(prepared, self.settings):
                replies = run_many(self._redis, batch.calls)
                collect(batch, replies, ids, self.settings)
        return [Job(self, job_id) for job_id in ids]

    def job(self, job_id: str) -> Job:
        """A handle for a job submitted earlier, or by somebody else."""
        return Job(self, job_id)

    def queue_status(self) -> QueueStatus:
        """Raises: BrokerUnavailable"""
        partitions = [Partition(self.settings.queue, i) for i in range(self.settings.partitions)]
        with broker_errors():
            replies = [run(self._redis, queue_status(p)) for p in partitions]
        return read_queue_status(self.settings.queue, replies)

    def _partition(self, job_id: str) -> Partition:
        return Partition(self.settings.queue, partition_of(job_id))

    def _log_after(self, cursor: LogCursor, job_id: str) -> list[Event]:
        """What the log holds after the cursor, at most a chunk of it."""
        partition = self._partition(job_id)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hmget(partition.state(job_id), "status", "tokens")
        pipeline.xrange(partition.tokens(job_id), min=cursor.log_start, count=_LOG_CHUNK)
        standing, entries = pipeline.execute()
        if not entries:
            cursor.check_silence(*read_standing(job_id, standing), job_id)
        return [decode_event(fields.get(b"event", b"")) for _, fields in entries]


class Job:
    """A handle: the id, and where to ask. Cheap to make, nothing to close."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self.id = job_id

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def stream(self, cursor: int = 0, *, timeout_s: float | None = None) -> Iterator[Event]:
        """Every event after `cursor`, once each and in order; the last one is terminal.

        `cursor` is a token count, as `event.cursor` gives it: 0 for all from the beginning.
        Lost connections and restarts of Redis or of the worker show as a pause.

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
                    for event in self._follow(position, patience):
                        outage.progress()
                        yield event
                except CONNECTION_LOST as error:
                    time.sleep(outage.next_delay_s(error))
                    patience.wait_s()

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the whole answer.

        Raises:
            JobFailed, JobCancelled, DeadlineExceeded, PromptTooLong, InvalidParameter: it ended so
            JobNotFound, BrokerUnavailable, ResultTimeout
        """
        builder = ResultBuilder(self.id)
        for event in self.stream(timeout_s=timeout_s):
            if (result := builder.add(event)) is not None:
                return result
        raise JobNotFound(f"job {self.id} ended without a terminal event")

    def status(self) -> JobStatus:
        """Raises: JobNotFound, BrokerUnavailable"""
        with broker_errors():
            client = self._client._redis
            state = self._client._partition(self.id).state(self.id)
            fields = patiently(client, lambda: client.hmget(state, *STATUS_FIELDS))
        return read_status(self.id, fields)

    def cancel(self) -> bool:
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
            outcome = run(self._client._redis, call)
        if outcome == b"UNKNOWN":
            raise job_not_found(self.id)
        return bool(outcome != b"ENDED")

    def _follow(self, position: LogCursor, patience: Patience) -> Iterator[Event]:
        """Subscribe, replay the log, then live: until the job or the connection ends."""
        channel = self._client._partition(self.id).channel(self.id)
        with self._client._subscriptions.listen(channel) as inbox:
            yield from self._replay(position)
            while not position.ended:
                verdict, news = position.judge_live(inbox.get(patience.wait_s()))
                if news is not None:
                    yield news
                elif verdict is Verdict.GAP:
                    yield from self._replay(position)

    def _replay(self, position: LogCursor) -> Iterator[Event]:
        while events := self._client._log_after(position, self.id):
            for event in events:
                if position.judge_logged(event) is Verdict.NEWS:
                    yield event
            if position.ended:
                return
