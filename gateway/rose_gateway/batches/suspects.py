"""Lines that may be why runners go without a word: killed for memory, or hung.

Once that has happened to a batch, its lines are prepared one at a time, and Redis knows which. A
line that was being prepared at several such ends is answered with an error, unread.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from rose_gateway.batches.line import retry_while_unavailable
from rose_gateway.storage.batch_repository import Batch, BatchRepository, Lease

#: Ends of runners while they prepared one line. An end may have another cause.
_MAX_FAILURES = 3


class Suspects:
    """Of one batch under one lease. Belongs to one event loop."""

    def __init__(self, repository: BatchRepository, lease: Lease, batch: Batch) -> None:
        self._repository = repository
        self._lease = lease
        self._careful = batch.lapses > 0
        self._given_up = {
            number for number, times in batch.line_failures.items() if times >= _MAX_FAILURES
        }
        self._one_at_a_time = asyncio.Lock()

    def given_up(self, number: int) -> bool:
        return number in self._given_up

    @asynccontextmanager
    async def preparing(self, number: int) -> AsyncGenerator[None, None]:
        """Raises: LeaseLost"""
        if not self._careful:
            yield
            return
        async with self._one_at_a_time:
            await self._note(number)
            try:
                yield
            finally:
                await self._note(None)

    async def _note(self, number: int | None) -> None:
        await retry_while_unavailable(partial(self._repository.prepare, self._lease, number))
