"""A connection to Redis for what one command does there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rose import transport
from rose_cli.options import settings_of

T = TypeVar("T")


def run_with_redis(
    redis_url: str | None, action: Callable[[transport.AsyncRedisClient], Awaitable[T]]
) -> T:
    """Raises: ConfigurationError; what `action` raises"""

    async def run() -> T:
        redis = transport.AsyncRedisClient(settings_of(redis_url))
        try:
            return await action(redis)
        finally:
            await redis.aclose()

    return asyncio.run(run())
