"""Waiting for what may never come."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import redis

from rose.errors import BrokerUnavailable
from tests.support.time_limit import TimeLimit

_POLL_S = 0.05
_AGAIN_S = 0.2


async def came_true(reached: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it did in this time. A Redis that is away is asked again."""
    limit = TimeLimit(timeout_s)
    while not limit.passed:
        with contextlib.suppress(redis.RedisError):
            if await asyncio.to_thread(reached):
                return True
        await asyncio.sleep(_POLL_S)
    return False


async def cancel(job: Any) -> None:
    """Until it is known to have worked. A call gives up sooner than a stream."""
    while True:
        try:
            await job.cancel()
        except BrokerUnavailable:
            await asyncio.sleep(_AGAIN_S)
        else:
            return
