"""Cancels the jobs of the lines that a batch has in flight."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rose.errors import BrokerUnavailable, JobNotFound
from rose_gateway.jobs.job_group import JobGroup

_RETRY_S = 1.0


class CancellationToken:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.code = ""
        """why no further line is begun; "" as long as lines are"""
        self._cancelled = asyncio.Event()
        self._groups: set[JobGroup] = set()
        self._cancelling: set[asyncio.Task[None]] = set()

    def cancel(self, code: str) -> None:
        """Cancel the jobs in flight. The first call decides the code."""
        if not self.code:
            self.code = code
            self._cancelled.set()
            for group in self._groups:
                self._cancel(group)

    async def wait(self, within_s: float) -> None:
        """At most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._cancelled.wait()

    @contextmanager
    def registered(self, group: JobGroup) -> Iterator[None]:
        """Within, a cancellation is one of these jobs too."""
        self._groups.add(group)
        if self.code:
            self._cancel(group)
        try:
            yield
        finally:
            self._groups.discard(group)

    def _cancel(self, group: JobGroup) -> None:
        task = asyncio.create_task(self._until_cancelled(group))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _until_cancelled(self, group: JobGroup) -> None:
        while group in self._groups:
            try:
                await group.cancel()
            except JobNotFound:
                return
            except BrokerUnavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                return
