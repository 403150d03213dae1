"""What asyncio does concurrently and `_sync.concurrency` does one after another."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

from rose.transport.event_loop import Home as Home

T = TypeVar("T")
R = TypeVar("R")

#: Reads of logs at a time in a partition, each of up to a thousand events: of thousands of streams
#: that begin at once, or that have lost their connection together.
_READS = 50


def read_limits() -> defaultdict[int, asyncio.Semaphore]:
    """By partition: the streams of a silent node must not hold up those of the others."""
    return defaultdict(lambda: asyncio.Semaphore(_READS))


class Once:
    """Work that is done once for all callers. After a failure all waiting callers get the error,
    and the next caller starts again."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._attempt: asyncio.Future[None] | None = None

    async def done(self) -> None:
        """Raises: what the work raises."""
        attempt = self._attempt
        if attempt is None or (attempt.done() and _failed(attempt)):
            attempt = self._attempt = asyncio.ensure_future(self._work())
            attempt.add_done_callback(_failed)  # each who waits may have given up
        await asyncio.shield(attempt)


def _failed(attempt: asyncio.Future[None]) -> bool:
    return attempt.cancelled() or attempt.exception() is not None


async def sent_ahead(
    items: Iterator[T], send: Callable[[T], Awaitable[R]]
) -> AsyncIterator[tuple[T, R]]:
    """Yield each item with its reply. One item is in flight at a time, in order. Meanwhile the item
    after the next one is prepared."""
    item, following = next(items, None), next(items, None)
    while item is not None and following is not None:
        sent = asyncio.ensure_future(send(item))
        try:
            await asyncio.sleep(0)  # lets the task start
            third = next(items, None)
            reply = await sent
        finally:
            sent.cancel()
        yield item, reply
        item, following = following, third
    if item is not None:
        yield item, await send(item)
