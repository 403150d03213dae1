"""Runs batches in a gateway: those that no other gateway runs."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from rose.errors import RoseError
from rose_gateway.batches.execution import BatchExecution
from rose_gateway.services import Services
from rose_gateway.storage.batch_repository import BatchRepository, Lease, LeaseLost, Problem

log = logging.getLogger("rose.gateway")

#: Between two claims of batches that nobody runs.
_POLL_S = 1.0
#: A batch that has made runners fail is left alone for so long, and is given up after so many.
_PAUSE_S = 5.0
_MAX_FAILURES = 20
#: For handing batches back when the gateway ends.
_RELEASE_S = 2.0


class BatchRunner:
    """Belongs to one event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._repository: BatchRepository = services.batches
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._executions: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled; then its batches are left to others."""
        try:
            while True:
                try:
                    await self._claim()
                except RoseError as error:
                    log.debug("batches were not looked for: %s", error)
                except Exception:
                    log.exception("batches were not looked for")
                self._repository.news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._repository.news.wait()
        finally:
            for execution in self._executions:
                execution.cancel()
            await asyncio.gather(*self._executions, return_exceptions=True)

    async def _claim(self) -> None:
        """Raises: BrokerUnavailable"""
        settings, metrics = self._services.settings, self._services.metrics
        metrics.unfinished_batches.set(await self._repository.unfinished())
        room = settings.max_batches - len(self._executions)
        if not settings.run_batches or room <= 0:
            return
        runner = f"{self._name}-{secrets.token_hex(8)}"
        claimed = await self._repository.claim(runner, lease_s=settings.batch_lease_s, limit=room)
        for lease in claimed:
            execution = asyncio.create_task(self._execute(lease))
            self._executions.add(execution)
            execution.add_done_callback(self._executions.discard)

    async def _execute(self, lease: Lease) -> None:
        log.info("running batch %s, epoch %d", lease.batch_id, lease.epoch)
        metrics = self._services.metrics
        metrics.running_batches.inc()
        try:
            await BatchExecution(self._services, self._repository, lease).run()
        except asyncio.CancelledError:
            with suppress(RoseError, LeaseLost, TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await self._repository.release(lease)
            raise
        except Exception:
            log.exception("batch %s has failed", lease.batch_id)
            with suppress(RoseError, LeaseLost):  # its lease ends by itself
                await self._pause(lease)
        finally:
            metrics.running_batches.dec()

    async def _pause(self, lease: Lease) -> None:
        """Leave it to any runner, a bit later. Raises: LeaseLost, BrokerUnavailable"""
        failures = await self._repository.release(lease, pause_s=_PAUSE_S, failure=True)
        if failures >= _MAX_FAILURES:
            problem = Problem("server_error", "the server failed again and again; its log says how")
            await self._repository.settle(lease, "failed", [problem])


@asynccontextmanager
async def running_batches(services: Services) -> AsyncGenerator[None, None]:
    """Meanwhile this gateway runs batches, if it is to."""
    running = asyncio.create_task(BatchRunner(services).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
