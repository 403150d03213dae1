"""Lines that have ended, counted in Redis a group at a time."""

import asyncio
from collections.abc import Callable
from functools import partial

from rose_gateway.batches.answer import Answer
from rose_gateway.batches.repository import BatchRepository, Lease, Status
from rose_gateway.batches.retries import retry_while_unavailable
from rose_gateway.metrics import Metrics

_EVERY_S = 0.2


class LineCounter:
    """Belongs to one event loop."""

    def __init__(
        self,
        repository: BatchRepository,
        lease: Lease,
        metrics: Metrics,
        on_status: Callable[[Status], None],
    ) -> None:
        """`on_status`: called with the batch's status after each group."""
        self._repository = repository
        self._lease = lease
        self._metrics = metrics
        self._on_status = on_status
        self._successes: list[int] = []
        self._failures: list[int] = []
        self._flushing = asyncio.Lock()

    def add(self, answer: Answer) -> None:
        (self._successes if answer.succeeded else self._failures).append(answer.number)

    async def flush(self) -> None:
        """When it returns, all that was added before is counted. Raises: LeaseLost"""
        async with self._flushing:
            successes, self._successes = self._successes, []
            failures, self._failures = self._failures, []
            if successes or failures:
                count = partial(self._repository.count_lines, self._lease, successes, failures)
                counts = await retry_while_unavailable(count)
                self._metrics.batch_lines_ended(counts.completed, counts.failed)
                self._on_status(counts.status)

    async def keep_flushing(self) -> None:
        """Raises: LeaseLost"""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.flush()
