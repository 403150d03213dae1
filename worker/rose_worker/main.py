"""Runs a worker in this process."""

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from functools import partial

from rose import logs
from rose.watchdog import Watchdog
from rose_worker.engine import Engine
from rose_worker.null_engine import NullEncoder, NullEngine
from rose_worker.preparation import Preparer
from rose_worker.service import DRAIN_S, END_S, Worker
from rose_worker.settings import WorkerSettings, chosen_formats

log = logging.getLogger("rose.worker")


def run(settings: WorkerSettings) -> None:
    """Run a worker to its end.

    Raises:
        RoseError: it cannot start.
    """
    if settings.engine != "null":
        _check_settings(settings)
    # Before there are threads.
    preparer = Preparer() if settings.engine != "null" and hasattr(os, "fork") else None
    try:
        watchdog = Watchdog(DRAIN_S + settings.grace_s, END_S)
        worker = Worker(settings, loader(settings, preparer), preparer, watchdog)
        logs.configure(settings.log_level, settings.log_format, {"consumer": worker.name})
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(worker.run())
    finally:
        if preparer is not None:
            preparer.close()
    # vLLM collects garbage several times at exit: for tens of seconds on a busy machine.
    gc.freeze()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, which spends less time on a message, or asyncio's: the base install, with which the
    null engine runs, has no uvloop, and neither has Windows."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def loader(settings: WorkerSettings, preparer: Preparer | None = None) -> Callable[[], Engine]:
    """What makes the engine. Importing torch takes seconds, so Redis is asked first; but vLLM's own
    arguments can only be checked by vLLM."""
    match settings.engine:
        case "null":
            encodes = settings.task in ("embed", "score")
            return partial(NullEncoder if encodes else NullEngine, settings)
        case "vllm":
            from rose_worker.vllm import loader

            return loader(settings, preparer)
    return partial(_load_rose, settings, preparer)


def _check_settings(settings: WorkerSettings) -> None:
    """Report obvious errors before the worker connects to Redis."""
    from roseinfer.checkpoints.sources import check

    chosen_formats(settings)
    check(settings.model)
    if settings.tokenizer is not None:
        check(settings.tokenizer)


def _load_rose(settings: WorkerSettings, preparer: Preparer | None) -> Engine:
    from roseinfer.checkpoints.sources import describe

    log.info("loading %s", describe(settings.model) if settings.model else "the built-in model")
    import roseinfer._openmp  # noqa: F401 - before torch
    from rose_worker.engine_imports import lean, uncollected

    with uncollected(), lean():
        from rose_worker.rose_engine import RoseEngine
        from roseinfer.encoders.model_files import task_of
    with lean():
        task = settings.task or task_of(settings.model)
        if task == "generate":
            return RoseEngine(settings, preparer)
        from rose_worker import rose_encoder

        return rose_encoder.load(settings, task, preparer)
