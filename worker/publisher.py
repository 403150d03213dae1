"""From step reports to the token log: what was generated is stored and published, in order.

One loop, one call in flight, so that the events of a job can only leave in the order in which they
came about. It runs beside the engine thread and never holds it up; while Redis is away it repeats
what it has, which is harmless, since every event says where in its job's log it belongs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from protocol import (
    CancelledEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    Partition,
    encode_tokens,
)
from protocol.calls import Append
from worker.broker import Broker
from worker.engine import Output
from worker.engine_thread import EngineThread
from worker.jobs import HeldJob, JobTable
from worker.metrics import Metrics

log = logging.getLogger("rose.publisher")

_RETRY_S = 0.2

#: Events that may wait for the call in flight; beyond that they stay with the engine thread, whose
#: own bound then makes decoding pause.
_MOST_PENDING = 2000


class Publisher:
    def __init__(
        self, broker: Broker, engine: EngineThread, table: JobTable, metrics: Metrics
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._table = table
        self._metrics = metrics
        self._tokens: list[tuple[HeldJob, Append]] = []
        self._ends: list[tuple[HeldJob, Event]] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def collect(self) -> None:
        """Accept what the engine has reported."""
        while len(self._tokens) < _MOST_PENDING and (report := self._engine.take_report()):
            self._metrics.observe_step(report.stats)
            for output in report.outputs:
                self._accept(output)
        if self._tokens or self._ends:
            self._idle.clear()
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            tokens, self._tokens = self._tokens, []
            ends, self._ends = self._ends, []
            sending = asyncio.create_task(self._send(tokens, ends))
            await asyncio.sleep(0)  # it is on its way: encode the next ones meanwhile
            self._wake.clear()
            self.collect()
            await sending
            self.collect()
            if not self._wake.is_set():
                self._idle.set()

    async def flushed(self) -> None:
        """Wait until everything that the engine has reported is in Redis."""
        self.collect()
        await self._idle.wait()

    def cancel(self, job_id: str) -> None:
        self._end(job_id, lambda index: CancelledEvent(index=index))

    def fail(self, job_id: str, code: str, message: str) -> None:
        self._end(job_id, lambda index: FailedEvent(index=index, code=code, message=message))

    def _end(self, job_id: str, event_at: Callable[[int], Event]) -> None:
        """End a held job before its time: its slot is free within one step."""
        if (job := self._let_go(job_id)) is not None:
            self._ends.append((job, event_at(job.logged)))
            self.collect()

    def _let_go(self, job_id: str) -> HeldJob | None:
        job = self._table.pop(job_id)
        if job is not None:
            self._engine.abort(job_id)
        return job

    def _accept(self, output: Output) -> None:
        job = self._table.get(output.job_id)
        # A step that was under way when the job was cancelled or lost brings tokens too many.
        if job is None or output.index != job.logged:
            return
        if output.token_ids:
            count = len(output.token_ids)
            event = encode_tokens(output.index, output.token_ids, output.text)
            self._tokens.append((job, Append(job.lease, output.index, count, event)))
            job.logged += count
        if output.finish_reason is not None:
            self._table.pop(output.job_id)
            finished = FinishedEvent(
                index=job.logged, reason=output.finish_reason, prompt_tokens=job.prompt_tokens
            )
            self._ends.append((job, finished))

    async def _send(
        self, tokens: list[tuple[HeldJob, Append]], ends: list[tuple[HeldJob, Event]]
    ) -> None:
        """A job's tokens go before its end: a call stores the one, then the other."""
        partitions = {job.lease.partition for job, _ in (*tokens, *ends)}
        for partition in partitions:
            await self._send_partition(
                partition,
                [item for item in tokens if item[0].lease.partition is partition],
                [item for item in ends if item[0].lease.partition is partition],
            )

    async def _send_partition(
        self,
        partition: Partition,
        tokens: Sequence[tuple[HeldJob, Append]],
        ends: Sequence[tuple[HeldJob, Event]],
    ) -> None:
        while True:
            try:
                appended, ended = await self._broker.publish(
                    partition,
                    [append for _, append in tokens],
                    [(job.lease, event) for job, event in ends],
                )
                break
            except RedisError as error:
                self._metrics.redis_error("publish")
                log.warning("publishing waits for Redis: %s", error)
                await asyncio.sleep(_RETRY_S)
        now = time.monotonic()
        for (job, append), outcome in zip(tokens, appended, strict=True):
            self._settle_tokens(job, append.count, outcome, now)
        for (job, end), outcome in zip(ends, ended, strict=True):
            self._settle_end(job, end, outcome, now)

    def _settle_tokens(self, job: HeldJob, count: int, outcome: str, now: float) -> None:
        if outcome in ("FENCED", "GAP"):
            self._lose(job, outcome)
            return
        self._metrics.observe_tokens(job, count, now)
        if job.alone:
            self._table.progressed(job)
        if outcome == "CANCEL" and self._table.holds(job):
            # The message on the control channel was lost; the flag is not.
            self.cancel(job.spec.id)

    def _settle_end(self, job: HeldJob, event: Event, outcome: str, now: float) -> None:
        if outcome in ("FENCED", "GAP"):
            self._lose(job, outcome)
            return
        self._metrics.observe_end(job, event, now)
        log.info(
            "job %s %s after %d tokens in %.2f s",
            job.spec.id,
            event.type,
            event.index,
            now - job.taken_at,
        )

    def _lose(self, job: HeldJob, outcome: str) -> None:
        """Somebody else has the job now, or its log: stop working on it."""
        self._metrics.fenced()
        if self._table.holds(job):
            self._let_go(job.spec.id)
            log.warning("job %s is not ours any more (%s)", job.spec.id, outcome)
