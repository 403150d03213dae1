"""`rose worker`, watched, and mortal: `python -m tests.chaos.worker CONTEXT`.

The same service with the same settings; its engine keeps a journal of the jobs it begins on, and
kills its own process when it steps a job that is poison.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

from rose.engine_records import SchedulerStats, StepOutput
from rose.protocol import JobSpec
from rose_worker.engine import Engine, ModelInfo, Prepared
from rose_worker.null_engine import NullEngine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings
from tests.chaos import clock, sabotage
from tests.chaos.context import (
    AGEING_S,
    GRACE_S,
    LEASE_S,
    QUEUE,
    REDIS_TIMEOUT_S,
    STALL_S,
    Context,
    hang_file,
    run_process,
)
from tests.chaos.journal import Journal

#: How often the event loop looks at the clock, and from when on it was held up.
_BEAT_S = 0.1
_LATE_S = 0.25
_HANG_POLL_S = 0.02


class WatchedEngine:
    def __init__(self, engine: Engine, journal: Journal, context: Context) -> None:
        self._engine = engine
        self._journal = journal
        self._hangs = {
            what: hang_file(context.folder, f"worker-{context.index}", what)
            for what in ("step", "tokenizer")
        }
        self._done: dict[str, int] = {}
        """Tokens of each job in the engine."""
        self._die_at: dict[str, int] = {}
        self._prepared: dict[str, int] = {}
        self._serving = False

    @property
    def model(self) -> ModelInfo:
        return self._engine.model

    @property
    def capacity(self) -> int:
        return self._engine.capacity

    @property
    def has_work(self) -> bool:
        if not self._serving:
            self._serving = True
            self._journal.write(clock.now(), "serving")
        return self._engine.has_work

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        self._hang("tokenizer")
        prepared = self._engine.prepare(job, generated_ids)
        self._prepared[job.id] = len(generated_ids)
        if "poison" in job.metadata:
            self._die_at[job.id] = int(job.metadata["poison"] or 0)
        return prepared

    def add(self, prepared: Prepared) -> None:
        done = self._prepared.pop(prepared.job_id, 0)
        self._done[prepared.job_id] = done
        self._journal.write(clock.now(), "take", prepared.job_id, done)
        self._engine.add(prepared)

    def abort(self, job_id: str) -> None:
        self._done.pop(job_id, None)
        self._engine.abort(job_id)

    def step(self, only: str | None = None) -> list[StepOutput]:
        for job_id in [only] if only is not None else list(self._done):
            if self._done.get(job_id, -1) >= self._die_at.get(job_id, sys.maxsize):
                self._journal.write(clock.now(), "poisoned", job_id, self._done[job_id])
                os.kill(os.getpid(), signal.SIGKILL)
        self._hang("step")
        outputs = self._engine.step(only)
        for output in outputs:
            if output.finish_reason is not None:
                self._done.pop(output.request_id, None)
            elif output.request_id in self._done:
                self._done[output.request_id] += len(output.token_ids)
        return outputs

    def _hang(self, what: str) -> None:
        while self._hangs[what].exists():
            time.sleep(_HANG_POLL_S)

    def stats(self) -> SchedulerStats:
        return self._engine.stats()


def _load(settings: WorkerSettings, journal: Journal, context: Context) -> Engine:
    if settings.engine == "null":
        return WatchedEngine(NullEngine(settings), journal, context)
    from rose_worker.rose_engine import RoseEngine

    return WatchedEngine(RoseEngine(settings), journal, context)


async def _beat(journal: Journal) -> None:
    """Notes when the machine, or a SIGSTOP, has held the process up: then it may lose leases."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(_BEAT_S)
        late_s = time.monotonic() - before - _BEAT_S
        if late_s > _LATE_S:
            journal.write(clock.now(), "late", "", round(late_s, 3))


async def _main(context: Context) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
    )
    options, life = context.options, f"{context.index}.{context.incarnation}"
    if options.sabotage is not None:
        sabotage.apply(options.sabotage, context.folder / f"scripts-{life}")
    settings = WorkerSettings(
        redis_url=context.redis_url,
        redis_timeout_s=REDIS_TIMEOUT_S,
        queue=QUEUE,
        engine=options.engine,
        max_batch_size=options.slots,
        torch_threads=1,
        lease_s=LEASE_S,
        stall_timeout_s=STALL_S,
        reclaim_interval_s=0.2,
        grace_s=GRACE_S,
        ageing_s=AGEING_S,
        min_step_s=options.min_step_s,
        http_port=context.http_port,
    )
    journal = Journal(context.folder / f"worker-{life}.jsonl")
    beat = asyncio.create_task(_beat(journal))
    try:
        await Worker(settings, lambda: _load(settings, journal, context)).run()
    finally:
        beat.cancel()


if __name__ == "__main__":
    run_process(_main)
