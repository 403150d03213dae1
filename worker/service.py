"""A worker's life: start, serve, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from rose_errors import BrokerUnavailable
from worker.broker import Broker
from worker.control import Control
from worker.engine import Engine
from worker.engine_thread import EngineThread
from worker.http import HttpServer
from worker.intake import Intake
from worker.jobs import JobTable
from worker.leases import LeaseKeeper
from worker.metrics import Metrics
from worker.publisher import Publisher
from worker.settings import WorkerSettings

log = logging.getLogger("rose.worker")

_WATCH_S = 5.0
#: At the end of a drain: how long to wait for the last tokens to reach Redis.
_FLUSH_S = 5.0


class Worker:
    def __init__(self, settings: WorkerSettings, load: Callable[[], Engine]) -> None:
        """`load` makes the engine; it runs in a thread, since a model takes its time."""
        self._settings = settings
        self._load = load
        self.name = settings.name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._broker = Broker(settings, self.name)
        self._redis_problem: str | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            BrokerUnavailable, ModelError, ConfigurationError: it cannot start.
            the engine's exception: it failed in mid-work; its leases lapse.
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal, signum)
        try:
            await self._broker.start()
            engine = await asyncio.to_thread(self._load)
            await self._serve(engine)
        finally:
            await self._broker.close()

    def _on_signal(self, signum: int) -> None:
        if self._stop.is_set():
            self._hurry.set()
        log.info(
            "%s: %s",
            signal.Signals(signum).name,
            "handing back" if self._hurry.is_set() else "draining",
        )
        self._stop.set()

    async def _serve(self, engine: Engine) -> None:
        settings, broker = self._settings, self._broker
        metrics = Metrics(engine.model, engine.capacity)
        table = JobTable(engine.capacity)
        thread = EngineThread(
            engine,
            max_reports=settings.max_buffered_steps,
            min_step_s=settings.min_step_s,
            on_report=lambda: publisher.wake(),
        )
        publisher = Publisher(broker, thread, table, metrics)
        intake = Intake(settings, broker, engine, thread, table, publisher, metrics)
        await self._announce(engine)
        http = HttpServer(
            settings.http_host,
            settings.http_port,
            metrics.registry,
            healthy=lambda: self._health(thread),
            ready=lambda: self._redis_problem,
        )
        thread.start()
        services = [
            asyncio.create_task(service, name=name)
            for name, service in (
                ("publisher", publisher.run()),
                ("leases", LeaseKeeper(settings, broker, thread, table, metrics).run()),
                ("control", Control(broker, publisher, metrics).run()),
                ("watch", self._watch(metrics)),
            )
        ]
        intake_task = asyncio.create_task(intake.run(), name="intake")
        log.info(
            "worker %s serves %s on %s, %d slots, http://%s:%d",
            self.name,
            engine.model.name,
            engine.model.device,
            engine.capacity,
            settings.http_host,
            http.port,
        )
        try:
            await self._until_stopped([intake_task, *services], thread)
            await self._drain(intake, intake_task, thread, publisher, table)
        finally:
            for task in (intake_task, *services):
                task.cancel()
            await asyncio.gather(intake_task, *services, return_exceptions=True)
            await asyncio.to_thread(http.close)

    async def _announce(self, engine: Engine) -> None:
        model = engine.model
        facts: dict[str, str | int] = {"name": model.name, "context_tokens": model.context_tokens}
        facts["max_bytes_per_token"] = model.max_bytes_per_token or ""
        try:
            await self._broker.announce_model(facts)
        except RedisError as error:
            raise BrokerUnavailable(f"Redis cannot be used: {error}") from error

    def _health(self, thread: EngineThread) -> str | None:
        if not thread.alive:
            return "the engine thread has ended"
        if thread.stalled_s > self._settings.stall_timeout_s:
            return f"a step has taken {thread.stalled_s:.0f} s"
        return None

    async def _watch(self, metrics: Metrics) -> None:
        """Looks at Redis now and then, for readiness and for the gauges of the queue."""
        while True:
            try:
                metrics.observe_queue(await self._broker.queue_status())
                self._redis_problem = None
            except RedisError as error:
                metrics.redis_error("watch")
                self._redis_problem = f"Redis: {error}"
            await asyncio.sleep(_WATCH_S)

    async def _until_stopped(self, tasks: list[asyncio.Task[None]], thread: EngineThread) -> None:
        """Wait for a signal. A task or engine that ends by itself has failed: raise its error."""
        stop: asyncio.Task[object] = asyncio.create_task(self._stop.wait())
        waiting: list[asyncio.Future[Any]] = [stop, thread.ended, *tasks]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            stop.cancel()

    async def _drain(
        self,
        intake: Intake,
        intake_task: asyncio.Task[None],
        thread: EngineThread,
        publisher: Publisher,
        table: JobTable,
    ) -> None:
        """Take nothing new, finish what the grace period allows, hand back the rest.

        A second signal ends the grace period.
        """
        intake.drain()
        await intake_task
        waiting: list[asyncio.Future[Any]] = [
            asyncio.create_task(_until_empty(table)),
            asyncio.create_task(self._hurry.wait()),
            thread.ended,
        ]
        await asyncio.wait(
            waiting, timeout=self._settings.grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting[:2]:
            task.cancel()
        if thread.ended.done():
            thread.ended.result()  # it failed: leave the leases to lapse, which charges an attempt
        await thread.stop()
        try:
            async with asyncio.timeout(_FLUSH_S):
                await publisher.flushed()
        except TimeoutError:
            log.warning("the last tokens did not reach Redis: another worker makes them again")
        try:
            await self._hand_back(table)
            await self._broker.leave()
        except RedisError as error:
            log.warning("not handed back, the leases will lapse: %s", error)
        log.info("drained")

    async def _hand_back(self, table: JobTable) -> None:
        for partition in self._broker.partitions:
            held = [job for job in table if job.partition == partition]
            if held:
                await self._broker.release(
                    partition,
                    [(job.lease.stream, job.spec.id, job.lease.entry) for job in held],
                )
                log.info("handed back %d jobs", len(held))


async def _until_empty(table: JobTable) -> None:
    while len(table):
        await table.changed()
