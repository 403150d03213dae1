"""Stores and publishes the tokens of step reports, in order.

    engine thread -- reports --> Publisher -- one lane per partition --> Redis

A lane has one call in flight, so the events of a job leave in their order. If a node of a cluster
is away, only the lanes of its partitions wait. Lanes never hold the engine thread up. While Redis
is away a lane repeats its call, which is harmless: every event names its place in its job's log.

What waits is bounded. If all lanes that have jobs are blocked, reports stay with the engine thread,
whose own bound makes decoding pause. If some continue, it must not pause: then the blocked ones may
keep more, and beyond that give their jobs up. Another worker continues with those from their logs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rose.engine_records import StepOutput
from rose.errors import InvalidParameter, RoseError
from rose.protocol import (
    CancelledEvent,
    EntryKey,
    Event,
    FailedEvent,
    FinishedEvent,
    Partition,
    encode_tokens,
)
from rose.protocol.calls import Append
from rose.transport import BROKER_ERRORS, WORKER, Outage
from rose_worker.broker import Broker
from rose_worker.engine import EngineThread
from rose_worker.jobs import HeldJob, JobTable
from rose_worker.metrics import Metrics

if TYPE_CHECKING:  # needs OpenTelemetry
    from rose_worker.tracing import Tracing

log = logging.getLogger("rose.publisher")

_Reply = TypeVar("_Reply")

#: Events that may wait for the calls in flight.
_MAX_PENDING = 2000

#: Events that blocked lanes may keep together while others continue: some 10 MB. A full batch that
#: decodes fast fills it in about a lease, after which its jobs are anybody's.
_MAX_BLOCKED = 50_000

#: A lane whose call has not succeeded for so long is blocked.
_BLOCKED_S = 0.5


class Publisher:
    def __init__(
        self,
        broker: Broker,
        engine: EngineThread,
        table: JobTable,
        metrics: Metrics,
        tracing: Tracing | None = None,
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._table = table
        self._metrics = metrics
        self._tracing = tracing
        self._lanes = {
            partition.index: _Lane(self, broker, partition, metrics)
            for partition in broker.partitions
        }

    async def run(self) -> None:
        lanes = (lane.run() for lane in self._lanes.values())
        await asyncio.gather(self._collect_beside_blocked_lanes(), *lanes)

    async def _collect_beside_blocked_lanes(self) -> None:
        """A lane becomes blocked without an event that could wake this loop."""
        while True:
            await asyncio.sleep(_BLOCKED_S / 2)
            if self._waiting >= _MAX_PENDING:
                self.collect()
            for lane in self._lanes.values():
                if lane.blocked:
                    self._clear_suspects(lane)

    def _clear_suspects(self, lane: _Lane) -> None:
        """A suspect that has a token has not killed this worker. Waiting until the token is
        logged would delay the jobs of all partitions."""
        for job in self._table.jobs_of(lane.partition):
            if job.alone and job.logged > job.first_index:
                self._table.progressed(job)

    async def flushed(self) -> None:
        """Wait until all that the engine has reported is in Redis."""
        self.collect()
        for lane in self._lanes.values():
            await lane.idle.wait()

    def entries_of(self, partition: Partition) -> list[EntryKey]:
        """Those of jobs whose last events may not be in Redis yet."""
        return self._lanes[partition.index].entries

    def collect(self) -> None:
        """Take the engine's reports and encode their tokens."""
        while self._has_room() and (report := self._engine.take_report()) is not None:
            self._metrics.observe_stats(report.stats)
            if report.stepped:
                self._metrics.observe_step(report.stats)
            self._accept(report.outputs, report.added)

    @property
    def _waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes.values())

    def _has_room(self) -> bool:
        if self._waiting < _MAX_PENDING:
            return True
        lanes = self._lanes.values()
        blocked = [lane for lane in lanes if lane.blocked]
        others = [lane for lane in lanes if not lane.blocked]
        if not blocked or not any(self._table.jobs_of(lane.partition) for lane in others):
            return False
        if sum(lane.waiting for lane in blocked) >= _MAX_BLOCKED:
            self._give_up_jobs(max(blocked, key=lambda lane: lane.waiting))
        return sum(lane.waiting for lane in others) < _MAX_PENDING

    def _give_up_jobs(self, lane: _Lane) -> None:
        """Their leases are not renewed any more, so another worker continues with them."""
        jobs = self._table.jobs_of(lane.partition)
        lane.forget_waiting()
        for job in jobs:
            self._let_go(job.spec.id)
            if self._tracing is not None:
                self._tracing.left(job, time.monotonic(), "unpublished")
        log.warning(
            "Redis does not answer for partition %d: its %d jobs are left to others",
            lane.partition.index,
            len(jobs),
        )

    def cancel(self, job_id: str) -> None:
        self._end(job_id, lambda index: CancelledEvent(index=index))

    def fail(self, job_id: str, error: RoseError) -> None:
        self._end(job_id, partial(FailedEvent.of, error))

    def finish_prompt(self, job_id: str, prompt_ids: Sequence[int] | None) -> None:
        """End a job that asks for no more than its prompt's tokens."""
        if (job := self._table.get(job_id)) is not None:
            prompt_tokens = job.prompt_tokens
            ids = None if prompt_ids is None else tuple(prompt_ids)
            self._end(
                job_id,
                lambda index: FinishedEvent(
                    index=index, reason="length", prompt_tokens=prompt_tokens, prompt_ids=ids
                ),
            )

    def _end(self, job_id: str, event_at: Callable[[int], Event]) -> None:
        """End a held job early. Its slot is free within one step."""
        if (job := self._let_go(job_id)) is not None:
            self._lanes[job.lease.partition.index].end(job, event_at(job.logged))

    def hand_back(self, job: HeldJob) -> None:
        """Leave a held job to whoever goes on with it, at the token that comes next. Its slot is
        free within one step."""
        if self._leave(job, "handed_back"):
            self._metrics.handed_back.inc()
            self._lanes[job.lease.partition.index].hand_back(job)

    def _let_go(self, job_id: str) -> HeldJob | None:
        job = self._table.pop(job_id)
        if job is not None:
            self._engine.abort(job_id)
        return job

    def _accept(self, outputs: Sequence[StepOutput], added: int) -> None:
        held, lanes = self._table.get, self._lanes
        for output in outputs:
            job = held(output.request_id)
            # A step that ran when the job was cancelled or lost brings tokens that are dropped,
            # also if this worker has taken the job again since.
            if job is None or added < job.added or output.index != job.logged:
                continue
            lane, ids = lanes[job.lease.partition.index], output.token_ids
            if ids:
                event = encode_tokens(
                    output.index,
                    ids,
                    output.text,
                    output.logprobs,
                    output.prompt_logprobs,
                    output.text_lengths,
                )
                lane.append(job, event, len(ids))
            if output.finish_reason is not None:
                self._accept_end(job, lane, output)

    def _accept_end(self, job: HeldJob, lane: _Lane, output: StepOutput) -> None:
        reason = output.finish_reason
        if reason == "error":
            self.fail(output.request_id, output.error or InvalidParameter(""))
        elif reason is not None:
            self._table.pop(output.request_id)
            finished = FinishedEvent(
                index=job.logged,
                reason=reason,
                prompt_tokens=job.prompt_tokens,
                cached_tokens=output.cached_tokens,
                stop=output.stop,
                left_out=job.left_out,
                numbers=output.numbers,
            )
            lane.end(job, finished)

    def settle(self, job: HeldJob, item: Append, outcome: str, now: float) -> int:
        """Act on the outcome of an append. Returns how many tokens it has added to the log."""
        if outcome in ("FENCED", "GAP"):
            self.lose(job, outcome)
            return 0
        if tokens := sum(item.counts):
            self._metrics.observe_tokens(job, tokens, now)
            if job.first_token_at is None:
                job.first_token_at = now
            if job.alone:
                self._table.progressed(job)
        if item.end is not None:
            self._settle_end(job, item.end, now)
        elif outcome == "CANCEL" and self._table.holds(job):
            # The message on the control channel was lost, but the flag is set.
            self.cancel(job.spec.id)
        return tokens

    def _settle_end(self, job: HeldJob, event: Event, now: float) -> None:
        self._metrics.observe_end(job, event, now)
        if isinstance(event, FinishedEvent) and job.first_token_at and not job.first_index:
            computed = event.prompt_tokens - (event.cached_tokens or 0)
            self._broker.note_prefill(computed, job.first_token_at - job.taken_at)
        if self._tracing is not None:
            self._tracing.ended(job, event, now)
        log.info(
            "job %s %s after %d tokens in %.2f s",
            job.spec.id,
            event.type,
            event.index,
            now - job.taken_at,
            extra={"job": job.spec.id},
        )

    def lose(self, job: HeldJob, outcome: str) -> None:
        """Stop working on a job that another worker has, or whose log somebody has changed."""
        self._metrics.fenced.inc()
        if self._leave(job, "fenced"):
            log.warning(
                "job %s is lost to others (%s)", job.spec.id, outcome, extra={"job": job.spec.id}
            )

    def lose_lease(self, job: HeldJob) -> None:
        """Stop working on a job whose lease could not be renewed, because it is another's."""
        if self._leave(job, "lease_lost"):
            self._metrics.leases_lost.inc()
            log.warning("the lease of job %s is lost", job.spec.id, extra={"job": job.spec.id})

    def _leave(self, job: HeldJob, why: str) -> bool:
        """Whether it was held: it may have ended, or been taken again."""
        if not self._table.holds(job):
            return False
        self._let_go(job.spec.id)
        if self._tracing is not None:
            self._tracing.left(job, time.monotonic(), why)
        return True


class _Lane:
    """The appends to one partition. If several steps finish while a call is in flight, a job's
    tokens are merged into one item of the next call."""

    def __init__(
        self, publisher: Publisher, broker: Broker, partition: Partition, metrics: Metrics
    ) -> None:
        self._publisher = publisher
        self._broker = broker
        self.partition = partition
        self._metrics = metrics
        self._items: dict[HeldJob, Append] = {}
        self._sending: Mapping[HeldJob, Append] = {}
        self._leaving: list[HeldJob] = []
        """to be handed back behind their last tokens"""
        self.waiting = 0
        """events that are in no call yet"""
        self._sending_since: float | None = None
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def entries(self) -> list[EntryKey]:
        jobs = (*self._sending, *self._items, *self._leaving)
        return [job.lease.entry for job in jobs]

    @property
    def blocked(self) -> bool:
        since = self._sending_since
        return since is not None and time.monotonic() - since > _BLOCKED_S

    def forget_waiting(self) -> None:
        self._items, self.waiting = {}, 0

    def append(self, job: HeldJob, event: bytes, tokens: int) -> None:
        item = self._items.get(job) or self._new_item(job)
        item.counts.append(tokens)
        item.events.append(event)
        job.logged += tokens
        self.waiting += 1

    def end(self, job: HeldJob, event: Event) -> None:
        (self._items.get(job) or self._new_item(job)).end = event

    def hand_back(self, job: HeldJob) -> None:
        self._leaving.append(job)
        self.idle.clear()
        self._wake.set()

    def _new_item(self, job: HeldJob) -> Append:
        if not self._items:
            self.idle.clear()
            self._wake.set()
        item = self._items[job] = Append(job.lease, job.logged)
        return item

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            items, self._items, self.waiting = self._items, {}, 0
            # Encode the next events while the call is in flight.
            loop.call_soon(self._publisher.collect)
            self._sending_since = time.monotonic()
            self._sending = items
            leaving = [*self._leaving]
            await self._send(items)
            self._sending = {}
            for job in leaving:
                await self._repeated(partial(self._broker.hand_back, job.lease))
                self._leaving.remove(job)
            self._sending_since = None
            self._publisher.collect()
            if not self._wake.is_set():
                self.idle.set()

    async def _repeated(self, call: Callable[[], Awaitable[_Reply]]) -> _Reply:
        """Until Redis has answered."""
        outage = Outage(WORKER)
        while True:
            try:
                return await call()
            except BROKER_ERRORS as error:
                self._metrics.redis_errors["publish"].inc()
                log.warning("publishing waits for Redis: %s", error)
                await asyncio.sleep(outage.next_pause_s(error))

    async def _send(self, items: Mapping[HeldJob, Append]) -> None:
        if not items:
            return
        publish = partial(self._broker.publish, self.partition, list(items.values()))
        outcomes = await self._repeated(publish)
        now = time.monotonic()
        stored = sum(
            self._publisher.settle(job, item, outcome, now)
            for (job, item), outcome in zip(items.items(), outcomes, strict=True)
        )
        self._metrics.generated_tokens.inc(stored)
