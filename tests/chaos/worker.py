"""`rose worker`, watched, and mortal: `python -m tests.chaos.worker CONTEXT`.

The same service with the same settings, around a `WatchedEngine`.
"""

import asyncio
import gc
import logging
import sys
import time
from pathlib import Path
from typing import Any

from rose_worker import admission
from rose_worker.engine import Engine
from rose_worker.jobs import HeldJob
from rose_worker.main import loader
from rose_worker.null_engine import NullEngine
from rose_worker.publisher import Publisher
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings
from tests.chaos import clock, sabotage
from tests.chaos.any_task import AnyTask
from tests.chaos.context import (
    AGEING_S,
    GRACE_S,
    HAND_BACKS,
    LEASE_S,
    PLACEMENT_S,
    QUEUE,
    REDIS_TIMEOUT_S,
    RESULT_TTL_S,
    SECOND_TIER,
    SECOND_TIER_BYTES,
    STALL_S,
    WORKERS,
    Context,
    hang_file,
    run_process,
)
from tests.chaos.engines import settings_of
from tests.chaos.journal import Journal
from tests.chaos.watched_engine import WatchedEngine

#: How often the event loop looks at the clock, and from when on it was held up.
_BEAT_S = 0.1
_LATE_S = 0.25


def _load(settings: WorkerSettings, journal: Journal, context: Context) -> Engine:
    if context.options.numbers:
        # A queue serves one model of one task; here one is served as if it did everything.
        setattr(admission, "check_task", lambda *_: None)  # noqa: B010
        return WatchedEngine(AnyTask(settings), journal, context)
    if settings.engine == "null":
        return WatchedEngine(NullEngine(settings), journal, context)
    return WatchedEngine(loader(settings)(), journal, context)


async def _beat(journal: Journal) -> None:
    """Notes when the machine, or a SIGSTOP, has held the process up: then it may lose leases."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(_BEAT_S)
        late_s = time.monotonic() - before - _BEAT_S
        if late_s > _LATE_S:
            journal.write(clock.now(), "late", "", round(late_s, 3))


async def _stand_still(context: Context) -> None:
    """While a file is there, the event loop does nothing else."""
    path = hang_file(context.folder, f"worker-{context.index}", "loop")
    while True:
        _wait_while_there(path)
        await asyncio.sleep(_BEAT_S)


def _wait_while_there(path: Path) -> None:
    while path.exists():
        time.sleep(_BEAT_S)


def _note_hand_backs(journal: Journal) -> None:
    hand_back = getattr(Publisher, "hand_back", None)
    if hand_back is None:  # an old version
        return

    def noted(publisher: Publisher, job: HeldJob) -> None:
        journal.write(clock.now(), "handed_back", job.spec.id, job.logged)
        hand_back(publisher, job)

    setattr(Publisher, "hand_back", noted)  # noqa: B010


async def _main(context: Context) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
    )
    options, life = context.options, f"{context.index}.{context.incarnation}"
    if options.sabotage is not None:
        sabotage.apply(options.sabotage, context.folder / f"scripts-{life}")
    drawn: dict[str, Any] = {}
    if options.placement:
        drawn["placement_s"] = PLACEMENT_S
    if options.hand_backs:
        drawn["hand_backs"] = HAND_BACKS
    if options.second_tier and context.engine == "rose":
        drawn["second_tier_bytes"] = SECOND_TIER_BYTES
        drawn["second_tier_folder"] = str(context.folder / SECOND_TIER)
    known = {name: drawn[name] for name in drawn if name in WorkerSettings.model_fields}
    settings = WorkerSettings(
        redis_url=context.redis_url,
        redis_timeout_s=REDIS_TIMEOUT_S,
        result_ttl_s=RESULT_TTL_S,
        queue=QUEUE,
        partitions=context.partitions,
        max_batch_size=options.slots,
        **settings_of(context.engine),
        lease_s=LEASE_S,
        stall_timeout_s=STALL_S,
        reclaim_interval_s=0.2,
        grace_s=GRACE_S,
        ageing_s=AGEING_S,
        **known,  # an old version has not all
        min_step_s=options.min_step_s,
        http_port=context.http_port,
        name=f"worker-{life}",
    )
    journal = Journal(context.folder / WORKERS / f"worker-{life}.jsonl")
    _note_hand_backs(journal)
    tasks = [asyncio.create_task(_beat(journal)), asyncio.create_task(_stand_still(context))]
    try:
        await Worker(settings, lambda: _load(settings, journal, context)).run()
    finally:
        for task in tasks:
            task.cancel()


def main() -> None:
    run_process(_main)
    gc.freeze()  # as rose_worker.main does


if __name__ == "__main__":
    main()
