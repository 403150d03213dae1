"""Runs a worker in this process."""

from __future__ import annotations

import asyncio

from rose import logs
from rose_worker.engine import Engine
from rose_worker.null_engine import NullEngine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings


def run(settings: WorkerSettings) -> None:
    """Run a worker to its end.

    Raises:
        RoseError: it cannot start.
    """
    if settings.engine == "rose":
        _check_sources(settings)
    worker = Worker(settings, lambda: _load(settings))
    logs.configure(settings.log_level, settings.log_format, {"consumer": worker.name})
    asyncio.run(worker.run())


def _check_sources(settings: WorkerSettings) -> None:
    """What is wrong at first sight is said before Redis hears of this worker."""
    from roseinfer.sources import check

    for source in (settings.model, settings.tokenizer):
        if source is not None:
            check(source)


def _load(settings: WorkerSettings) -> Engine:
    if settings.engine == "null":
        return NullEngine(settings)
    # Imported here, since torch takes seconds to import and Redis is asked first.
    import roseinfer._openmp  # noqa: F401 - before torch
    from rose_worker.rose_engine import RoseEngine

    return RoseEngine(settings)
