"""What only asyncio can do at the same time; `_sync.concurrency` does it one after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Reads of logs at a time, each with a connection: of thousands of streams that begin at once, or
#: that have lost their connection together.
_READS = 50


def read_limit() -> asyncio.Semaphore:
    return asyncio.Semaphore(_READS)


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
