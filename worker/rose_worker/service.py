"""Starts a worker, lets it serve, and drains it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from rose.cores import usable_cores
from rose.errors import ConfigurationError
from rose.installation import how_to_install
from rose.memory import gigabytes, used_memory
from rose.protocol import Partition
from rose.threads import started_pool
from rose.transport import BROKER_ERRORS, broker_errors
from rose.watchdog import SIGNALS, Watchdog
from rose_worker import durability
from rose_worker.admission import Admission
from rose_worker.broker import Broker
from rose_worker.control import Control
from rose_worker.engine import Engine, EngineThread
from rose_worker.hand_backs import HandBacks
from rose_worker.http import HttpServer
from rose_worker.intake import Intake
from rose_worker.jobs import JobTable
from rose_worker.joining import join
from rose_worker.leases import LeaseKeeper
from rose_worker.metrics import Metrics
from rose_worker.preparation import Preparation, Preparer
from rose_worker.publisher import Publisher
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import cancel_all, in_time
from rose_worker.vocabulary import VocabularyKeeper
from rose_worker.watch import Watch

if TYPE_CHECKING:
    from rose_worker.tracing import Tracing

log = logging.getLogger("rose.worker")

#: How long a drain waits for a silent partition: for its intake to end, for the last tokens to
#: reach Redis, and for handing back. Other partitions take no time.
_INTAKE_S = 2.0
_FLUSH_S = 3.0
_HAND_BACK_S = 3.0

#: How long a drain waits for the step that the device computes.
_STEP_S = 30.0
DRAIN_S = _INTAKE_S + _STEP_S + _FLUSH_S + _HAND_BACK_S

#: What ends after that, or at once, takes no longer than this. What hangs is left behind.
END_S = 10.0

#: How often a worker that loads its model says that it goes on.
_PROGRESS_S = 5.0

#: Threads that make sessions, beyond the cores.
_SPARE_THREADS = 4

#: How often the event loop shows that it goes on.
_BEAT_S = 0.5


class Worker:
    """Connects to Redis, loads the model and handles signals. `_Service` serves."""

    def __init__(
        self,
        settings: WorkerSettings,
        load: Callable[[], Engine],
        preparer: Preparer | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """`load` makes the engine. It runs in a thread, since a model takes its time. `preparer`:
        where a job's text may cost anything, what prepares it. `watchdog`: of a process that is
        to end with the worker."""
        self._settings = settings
        self._load = load
        self._preparer = preparer
        self._watchdog = watchdog
        made_up = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.name = settings.name or made_up
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._on_signal: Callable[[int], None] = _end

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. A second signal ends the grace period.

        Raises:
            BrokerUnavailable, ModelError, ConfigurationError: the worker cannot start.
            the engine's exception: the engine failed while it served. The leases lapse.
        """
        handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
        for signum in SIGNALS:
            signal.signal(signum, self._handle)
        try:
            pool = started_pool(usable_cores() + _SPARE_THREADS, "worker")
            asyncio.get_running_loop().set_default_executor(pool)
            with self._watchdog.watching() if self._watchdog else nullcontext():
                await self._serve()
        finally:
            for signum, handler in handlers.items():
                signal.signal(signum, handler)

    async def _serve(self) -> None:
        # Before the model: it takes minutes, and another worker may have the port.
        http = HttpServer(self._settings.http_host, self._settings.http_port, name=self.name)
        broker = Broker(self._settings, self.name)
        try:
            await broker.start()
            durability.check_in_background(self._settings)
            engine = await _in_own_thread(self._load)
            self._on_signal = partial(_call_in, asyncio.get_running_loop(), self._drain)
            broker.slots = engine.capacity
            if not engine.model.caches_prefixes:
                broker.place_no_jobs()
            if not await self._join(broker, engine):
                return
            service = _Service(self._settings, broker, engine, http, self._preparer)
            try:
                await service.run(self._stop)
                await service.drain(self._hurry)
            finally:
                await service.close()
        finally:
            await asyncio.to_thread(http.close)
            await broker.close()

    async def _join(self, broker: Broker, engine: Engine) -> bool:
        """False if a signal came while it waited for workers with another model to leave."""
        waiting = join(broker, engine.model, replace=self._settings.replace_model)
        with broker_errors():
            return await in_time(waiting, math.inf, self._stop)

    def _handle(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's
        """Python runs it in the main thread as soon as that runs Python again, be it in the loop,
        waiting for a lock, or in a call that a signal interrupts."""
        self._on_signal(signum)

    def _drain(self, signum: int) -> None:
        if self._stop.is_set():
            self._hurry.set()
        what = "handing back" if self._hurry.is_set() else "draining"
        log.info("%s: %s", signal.Signals(signum).name, what)
        self._stop.set()


async def _in_own_thread(load: Callable[[], Engine]) -> Engine:
    """`load` in a thread that ends with it. One that stays keeps its OpenMP threads. With those of
    the engine's thread there are more than cores, and libgomp's then sleep at every wait."""
    with ThreadPoolExecutor(1, "load") as pool:
        began, loading = time.monotonic(), asyncio.wrap_future(pool.submit(load))
        while not (await asyncio.wait([loading], timeout=_PROGRESS_S))[0]:
            seconds = time.monotonic() - began
            log.info("still loading after %.0f s: %s in memory", seconds, gigabytes(used_memory()))
        return loading.result()


def _call_in(loop: asyncio.AbstractEventLoop, handler: Callable[[int], None], signum: int) -> None:
    with suppress(RuntimeError):  # it is closed: the process ends already
        loop.call_soon_threadsafe(handler, signum)


def _end(signum: int) -> None:
    """Exit at once: a worker that does not serve yet holds nothing, and the thread that loads a
    model cannot be interrupted."""
    log.info("%s: ended before it served", signal.Signals(signum).name)
    logging.shutdown()
    os._exit(128 + signum)


class _Service:
    """The parts of a worker that serves, and the order in which they start and stop."""

    def __init__(
        self,
        settings: WorkerSettings,
        broker: Broker,
        engine: Engine,
        http: HttpServer,
        preparer: Preparer | None,
    ) -> None:
        self._settings = settings
        self._broker = broker
        metrics = Metrics(engine.model, engine.capacity)
        self._table = table = JobTable(engine.capacity)
        self._thread = thread = EngineThread(
            engine,
            max_reports=settings.max_buffered_steps,
            min_step_s=settings.min_step_s,
        )
        self._tracing = _tracing(settings, broker, engine)
        self._publisher = publisher = Publisher(broker, thread, table, metrics, self._tracing)
        self._admission = admission = Admission(
            settings, broker, engine, thread, table, publisher, metrics, Preparation(preparer)
        )
        hand_backs = HandBacks(settings, broker, table, publisher)
        parts = (broker, thread, table, admission, publisher, metrics, hand_backs)
        self._intakes = [Intake(settings, partition, *parts) for partition in broker.partitions]
        self._leases = LeaseKeeper(settings, broker, thread, publisher, table, metrics)
        self._control = Control(broker, publisher, table, metrics)
        self._vocabulary = VocabularyKeeper(broker, engine)
        self._watch = Watch(broker, metrics, engine.model, table, self._vocabulary.lacks)
        self._http = http
        self._registry = metrics.registry
        self._beat_at = time.monotonic()
        self._intake_tasks: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        _log_start(settings, broker, engine, http.port)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises the error of a part that fails before."""
        self._thread.start(self._publisher.collect)
        # Not before: an engine thread that has not begun looks like one that has ended.
        self._http.serve(self._registry, healthy=self._health, ready=self._readiness)
        self._intake_tasks = [asyncio.create_task(intake.run()) for intake in self._intakes]
        parts = (
            self._publisher.run(),
            self._admission.run(),
            self._leases.run(),
            self._control.run(),
            self._watch.run(),
            self._vocabulary.run(),
            self._beat(),
        )
        self._tasks = [*self._intake_tasks, *(asyncio.create_task(part) for part in parts)]
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait(
                [stopped, self._thread.ended, *self._tasks], return_when=asyncio.FIRST_COMPLETED
            )
            for ended in done:
                ended.result()
        finally:
            stopped.cancel()

    async def drain(self, hurry: asyncio.Event) -> None:
        """Take no new jobs, finish those that the grace period allows, hand back the rest.

        A partition that does not answer delays none of the others, and the end by a few seconds.
        """
        end = time.monotonic() + self._settings.grace_s
        for intake in self._intakes:
            intake.drain()
        await in_time(self._offer_no_slots(), _INTAKE_S, hurry)
        if not await in_time(_all_ended(self._intake_tasks), _INTAKE_S, hurry):
            await cancel_all(self._intake_tasks)
        await in_time(self._admission.settled(), _INTAKE_S, hurry)
        await self._admission.close()
        await in_time(self._finish_held(), max(0.0, end - time.monotonic()), hurry)
        if self._thread.ended.done():
            self._thread.ended.result()  # it has failed: the leases lapse, and attempts are charged
        await in_time(self._thread.stop(), _STEP_S, hurry)
        if not await in_time(self._publisher.flushed(), _FLUSH_S, hurry):
            log.warning("the last tokens did not reach Redis: another worker makes them again")
        # From here on nothing may renew leases of handed-back jobs or announce this worker.
        await cancel_all(self._tasks)
        await asyncio.gather(*(self._hand_back(p, hurry) for p in self._broker.partitions))
        log.info("drained")

    async def close(self) -> None:
        await cancel_all(self._tasks)
        await self._admission.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    async def _offer_no_slots(self) -> None:
        for partition in self._broker.partitions:
            try:
                await self._broker.offer_no_slots(partition)
            except BROKER_ERRORS as error:
                log.debug("jobs may wait for this worker a little: %s", error)

    async def _finish_held(self) -> None:
        """Wait until every held job has ended, or the engine has."""
        empty = asyncio.ensure_future(_until_empty(self._table))
        try:
            await asyncio.wait([empty, self._thread.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            empty.cancel()

    async def _hand_back(self, partition: Partition, hurry: asyncio.Event) -> None:
        try:
            if await in_time(self._release(partition), _HAND_BACK_S, hurry):
                return
            reason = "Redis does not answer"
        except BROKER_ERRORS as error:
            reason = str(error)
        log.warning(
            "partition %d is not handed back, its leases will lapse: %s", partition.index, reason
        )

    async def _release(self, partition: Partition) -> None:
        """Raises: BROKER_ERRORS"""
        if entries := self._table.entries_of(partition):
            await self._broker.release(partition, entries)
            log.info("handed back %d jobs of partition %d", len(entries), partition.index)
        if self._tracing is not None:
            for job in self._table.jobs_of(partition):
                self._tracing.left(job, time.monotonic(), "released")
        await self._broker.leave(partition)

    async def _beat(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(_BEAT_S)

    def _standstill(self, longest_s: float) -> str | None:
        """Of the event loop. Asked by another thread: a loop that stands cannot say so."""
        silent_s = time.monotonic() - self._beat_at
        if silent_s > longest_s + _BEAT_S:
            return f"the event loop has stood still for {silent_s:.0f} s"
        return None

    def _readiness(self) -> str | None:
        # By then others may have its jobs.
        return self._standstill(self._settings.lease_s) or self._watch.check()

    def _health(self) -> str | None:
        if standstill := self._standstill(self._settings.stall_timeout_s):
            return standstill
        if not self._thread.alive:
            return "the engine thread has ended"
        if self._thread.stalled_s > self._settings.stall_timeout_s:
            return f"a step has taken {self._thread.stalled_s:.0f} s"
        return None


def _log_start(settings: WorkerSettings, broker: Broker, engine: Engine, http_port: int) -> None:
    log.info(
        "worker %s serves %s on %s, dtype %s, decoder %s, %d slots, http://%s:%d",
        broker.consumer,
        engine.model.name,
        engine.model.device,
        engine.model.dtype,
        engine.model.decoder,
        engine.capacity,
        f"[{settings.http_host}]" if ":" in settings.http_host else settings.http_host,
        http_port,
    )


def _tracing(settings: WorkerSettings, broker: Broker, engine: Engine) -> Tracing | None:
    """Raises: ConfigurationError: tracing is asked for and not installed."""
    if not settings.tracing:
        return None
    try:
        from rose_worker.tracing import Tracing
    except ImportError as error:
        raise ConfigurationError(
            f"ROSE_TRACING needs {error.name}: {how_to_install('tracing')}"
        ) from None
    return Tracing(engine.model, broker.consumer)


async def _all_ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raises: what one of them raises."""
    await asyncio.gather(*tasks)


async def _until_empty(table: JobTable) -> None:
    while len(table):
        await table.next_change.wait()
