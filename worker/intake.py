"""From Redis into free slots: new jobs, and jobs of workers that died or drained.

The only task that fills slots, so it alone counts them: it never asks for more than are free.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence

from redis.exceptions import RedisError, ResponseError

from protocol import (
    JobSpec,
    Partition,
    TokenEvent,
    decode_event,
    decode_job,
    readable_job_id,
)
from protocol.calls import Lease, Taken, now_ms
from rose_errors import DeadlineExceeded, InvalidRequest, MalformedMessage, RoseError
from worker.broker import Broker, Entry
from worker.engine import Engine, Prepared
from worker.engine_thread import EngineThread
from worker.jobs import HeldJob, JobTable
from worker.metrics import Metrics
from worker.publisher import Publisher
from worker.settings import WorkerSettings

log = logging.getLogger("rose.intake")

#: A blocking read returns up to COUNT entries of *each* stream, so with few free slots intake
#: polls instead.
_POLL_S = 0.02
_RETRY_S = 0.5


class Intake:
    def __init__(
        self,
        settings: WorkerSettings,
        broker: Broker,
        engine: Engine,
        thread: EngineThread,
        table: JobTable,
        publisher: Publisher,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._engine = engine
        self._thread = thread
        self._table = table
        self._publisher = publisher
        self._metrics = metrics
        self._draining = False
        self._reclaim_due = 0.0
        self._turn = itertools.count()
        self._reclaim_from: dict[str, str] = {}

    def drain(self) -> None:
        """Take no more; `run` returns once what it is doing is done."""
        self._draining = True

    async def run(self) -> None:
        while not self._draining:
            try:
                await self._reclaim_if_due()
                await self._fill()
            except ResponseError as error:
                self._metrics.redis_error("intake")
                if str(error).startswith("NOGROUP"):
                    await self._recreate_groups()
                else:
                    log.warning("intake: Redis says: %s", error)
                await asyncio.sleep(_RETRY_S)
            except RedisError as error:
                self._metrics.redis_error("intake")
                log.warning("intake waits for Redis: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _fill(self) -> None:
        free = self._table.free_slots
        if free == 0:
            await self._wait_for_a_slot()
            return
        entries: list[Entry] = []
        for partition in self._partitions_in_turn():
            if len(entries) < free:
                entries += await self._broker.fetch(partition, free - len(entries))
        if not entries:
            streams = sum(len(partition.all_jobs) for partition in self._broker.partitions)
            if free < streams:
                await asyncio.sleep(_POLL_S)
            else:
                entries = await self._broker.wait(free // streams)
        await self._begin(entries)

    async def _wait_for_a_slot(self) -> None:
        try:
            async with asyncio.timeout(self._settings.reclaim_interval_s):
                await self._table.changed()
        except TimeoutError:
            return

    def _partitions_in_turn(self) -> list[Partition]:
        """All partitions, another one first each time: none is starved by one before it."""
        partitions = self._broker.partitions
        first = next(self._turn) % len(partitions)
        return partitions[first:] + partitions[:first]

    async def _reclaim_if_due(self) -> None:
        now = time.monotonic()
        if now < self._reclaim_due or self._table.free_slots == 0:
            return
        self._reclaim_due = now + self._settings.reclaim_interval_s
        for partition in self._broker.partitions:
            for stream in partition.all_jobs:
                free = self._table.free_slots
                if free == 0:
                    return
                start = self._reclaim_from.get(stream, "0-0")
                self._reclaim_from[stream], entries = await self._broker.reclaim(
                    partition, stream, self._settings.lease_s, start, free
                )
                self._metrics.redelivered(len(entries))
                await self._begin(entries)

    async def _recreate_groups(self) -> None:
        try:
            await self._broker.create_groups()
        except RedisError as error:
            log.warning("intake cannot create the consumer groups: %s", error)

    async def _begin(self, entries: Sequence[Entry]) -> None:
        """Take entries that this worker owns, and put them into slots."""
        if self._draining and entries:
            await self._hand_back(entries)
            return
        readable: list[tuple[Entry, JobSpec]] = []
        for entry in entries:
            try:
                spec = decode_job(entry.raw or b"")
            except RoseError as error:
                await self._reject(entry, readable_job_id(entry.raw or b""), 0, error)
                continue
            # Our own entry, reclaimed because its renewal was late: it is renewed now.
            if spec.id not in self._table:
                readable.append((entry, spec))
        taken = await self._broker.take([(entry, spec.id) for entry, spec in readable])
        await asyncio.gather(
            *(
                self._start(entry, spec, grant)
                for (entry, spec), grant in zip(readable, taken, strict=True)
                if grant is not None
            )
        )

    async def _start(self, entry: Entry, spec: JobSpec, grant: Taken) -> None:
        """Go on with the token after the last one in the log."""
        logged: list[int] = []
        try:
            logged = _logged_ids(grant.log)
            if grant.attempts > self._settings.max_attempts:
                raise _CrashLoop(
                    f"{grant.attempts - 1} workers in a row died on this job without a new token"
                )
            prepared = await self._prepare(spec, logged)
        except RoseError as error:
            await self._reject(entry, spec.id, len(logged), error)
            return
        job = self._hold(entry, spec, grant, prepared, len(logged))
        self._metrics.observe_take(job)
        if grant.cancel_requested:
            self._publisher.cancel(spec.id)
        elif spec.deadline_ms is not None and not self._set_deadline(job, spec.deadline_ms):
            self._miss_deadline(spec.id)
        else:
            self._thread.add(prepared)
            log.info(
                "job %s taken: %d prompt tokens, %d logged, epoch %d",
                spec.id,
                prepared.prompt_tokens,
                len(logged),
                grant.epoch,
            )

    async def _prepare(self, spec: JobSpec, logged: list[int]) -> Prepared:
        try:
            return await asyncio.to_thread(self._engine.prepare, spec, logged)
        except InvalidRequest:
            raise
        except Exception as error:
            # A job that breaks the tokenizer or the chat template must not stop the worker. The
            # error's own text may quote the prompt, so only its type is told.
            raise MalformedMessage(
                f"the prompt cannot be prepared for this model ({type(error).__name__})"
            ) from error

    def _hold(
        self, entry: Entry, spec: JobSpec, grant: Taken, prepared: Prepared, logged: int
    ) -> HeldJob:
        waited_s = max(0.0, (now_ms() - entry.enqueued_ms) / 1000)
        job = HeldJob(
            spec=spec,
            partition=entry.partition,
            lease=Lease(spec.id, entry.stream, entry.id, grant.epoch),
            logged=logged,
            prompt_tokens=prepared.prompt_tokens,
            enqueued_at=time.monotonic() - waited_s,
            resumed=logged > 0 or grant.epoch > 1,
        )
        self._table.add(job)
        return job

    def _set_deadline(self, job: HeldJob, deadline_ms: int) -> bool:
        """False when it has passed already."""
        left_s = (deadline_ms - now_ms()) / 1000
        if left_s > 0:
            loop = asyncio.get_running_loop()
            job.deadline = loop.call_later(left_s, self._miss_deadline, job.spec.id)
        return left_s > 0

    def _miss_deadline(self, job_id: str) -> None:
        self._publisher.fail(job_id, DeadlineExceeded.code, "its deadline has passed")

    async def _reject(self, entry: Entry, job_id: str | None, index: int, error: RoseError) -> None:
        self._metrics.invalid_message()
        # The code alone: a chat template's message may quote the prompt.
        log.warning("entry %s (job %s) is a dead letter: %s", entry.id, job_id, error.code)
        await self._broker.dead_letter(entry, job_id, index, error.code, str(error))

    async def _hand_back(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            job_id = readable_job_id(entry.raw or b"") or "unreadable"
            await self._broker.release(entry.partition, [(entry.stream, job_id, entry.id)])


class _CrashLoop(RoseError):
    code = "crash_loop"


def _logged_ids(log_events: Sequence[bytes]) -> list[int]:
    ids: list[int] = []
    for raw in log_events:
        event = decode_event(raw)
        if isinstance(event, TokenEvent):
            ids.extend(event.token_ids)
    return ids
