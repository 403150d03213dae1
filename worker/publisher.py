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

from protocol import CancelledEvent, Event, FailedEvent, FinishedEvent, Partition, TokenEvent
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


_Item = tuple[HeldJob, Event]


class Publisher:
    def __init__(
        self, broker: Broker, engine: EngineThread, table: JobTable, metrics: Metrics
    ) -> None:
        self._broker = broker
        self._engine = engine
        self._table = table
        self._metrics = metrics
        self._pending: list[_Item] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()

    def collect(self) -> None:
        """Accept what the engine has reported. Runs while the call before is in flight."""
        while len(self._pending) < _MOST_PENDING and (report := self._engine.take_report()):
            self._metrics.observe_step(report.stats)
            for output in report.outputs:
                self._accept(output)
        if self._pending:
            self._idle.clear()
            self._wake.set()
        elif not self._wake.is_set():
            self._idle.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            items, self._pending = self._pending, []
            await self._send(items)
            self._wake.clear()
            self.collect()

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
            self._pending.append((job, event_at(job.logged)))
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
            event = TokenEvent(index=output.index, token_ids=output.token_ids, text=output.text)
            self._pending.append((job, event))
            job.logged = event.cursor
        if output.finish_reason is not None:
            self._table.pop(output.job_id)
            finished = FinishedEvent(
                index=job.logged, reason=output.finish_reason, prompt_tokens=job.prompt_tokens
            )
            self._pending.append((job, finished))

    async def _send(self, items: Sequence[_Item]) -> None:
        by_partition: dict[Partition, list[_Item]] = {}
        for item in items:
            by_partition.setdefault(item[0].lease.partition, []).append(item)
        for partition, group in by_partition.items():
            await self._send_partition(partition, group)

    async def _send_partition(self, partition: Partition, items: Sequence[_Item]) -> None:
        tokens = [(job, event) for job, event in items if isinstance(event, TokenEvent)]
        ends = [(job, event) for job, event in items if not isinstance(event, TokenEvent)]
        while True:
            try:
                appended, ended = await self._broker.publish(
                    partition,
                    [(job.lease, event) for job, event in tokens],
                    [(job.lease, event) for job, event in ends],
                )
                break
            except RedisError as error:
                self._metrics.redis_error("publish")
                log.warning("publishing waits for Redis: %s", error)
                await asyncio.sleep(_RETRY_S)
        now = time.monotonic()
        for (job, event), outcome in zip(tokens, appended, strict=True):
            self._settle_tokens(job, event, outcome, now)
        for (job, end), outcome in zip(ends, ended, strict=True):
            self._settle_end(job, end, outcome, now)

    def _settle_tokens(self, job: HeldJob, event: TokenEvent, outcome: str, now: float) -> None:
        if outcome in ("FENCED", "GAP"):
            self._lose(job, outcome)
            return
        self._metrics.observe_tokens(job, len(event.token_ids), now)
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
