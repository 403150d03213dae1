"""Calls of a batch are retried while Redis or the storage is unavailable."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rose import transport
from rose.errors import BrokerUnavailable, RedisFull, RoseError, StorageUnavailable

log = logging.getLogger("rose.gateway")

T = TypeVar("T")

#: Errors that pass by themselves.
UNAVAILABLE: tuple[type[RoseError], ...] = (BrokerUnavailable, RedisFull, StorageUnavailable)


async def retry_while_unavailable(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that may be repeated, until it is answered."""
    outage = transport.Outage(transport.BATCH)
    waits = False
    while True:
        try:
            return await call()
        except UNAVAILABLE as error:
            if not waits:
                log.warning("a batch waits: %s", error)
            waits = True
            pause_s = outage.next_pause_s(error)
        await asyncio.sleep(pause_s)
