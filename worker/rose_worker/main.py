"""Runs a worker in this process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial

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
    if settings.engine != "null":
        _check_sources(settings)
    load = loader(settings)
    worker = Worker(settings, load)
    logs.configure(settings.log_level, settings.log_format, {"consumer": worker.name})
    asyncio.run(worker.run())
    # vLLM collects garbage several times at exit: for tens of seconds on a busy machine.
    gc.freeze()


def loader(settings: WorkerSettings) -> Callable[[], Engine]:
    """What makes the engine. Importing torch takes seconds, so Redis is asked first; but vLLM's own
    arguments can only be checked by vLLM."""
    match settings.engine:
        case "null":
            return partial(NullEngine, settings)
        case "vllm":
            from rose_worker.vllm import loader

            return loader(settings)
    return partial(_load_rose, settings)


def _check_sources(settings: WorkerSettings) -> None:
    """Report obvious errors before the worker connects to Redis."""
    from roseinfer.checkpoints.sources import check

    for source in (settings.model, settings.tokenizer):
        if source is not None:
            check(source)


def _load_rose(settings: WorkerSettings) -> Engine:
    import roseinfer._openmp  # noqa: F401 - before torch
    from rose_worker.engine_imports import lean, uncollected

    with uncollected(), lean():
        from rose_worker.rose_engine import RoseEngine
    with lean():
        return RoseEngine(settings)
