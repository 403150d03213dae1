"""The process: settings in, exit status out."""

from __future__ import annotations

import asyncio

from worker import logs
from worker.engine import Engine
from worker.null_engine import NullEngine
from worker.service import Worker
from worker.settings import WorkerSettings


def run(settings: WorkerSettings) -> None:
    """Run a worker to its end.

    Raises:
        RoseError: it cannot start.
    """
    worker = Worker(settings, lambda: _load(settings))
    logs.configure(settings, worker.name)
    asyncio.run(worker.run())


def _load(settings: WorkerSettings) -> Engine:
    if settings.engine == "null":
        return NullEngine(settings)
    # Here and not above: torch takes seconds to import, and Redis is asked first.
    import roseinfer._openmp  # noqa: F401 - before torch
    from worker.rose_engine import RoseEngine

    return RoseEngine.load(settings)
