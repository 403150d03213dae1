"""Every connection to Redis: how it is opened, repeated, and listened to.

All of it is asyncio; who blocks calls it on a `LoopThread`. All is loaded at first use, because
importing redis-py takes as long as the rest of a client does.
"""

from typing import TYPE_CHECKING

from rose.lazy import loader

if TYPE_CHECKING:
    from rose.transport.async_subscriptions import AsyncSubscriptions as AsyncSubscriptions
    from rose.transport.failures import BATCH as BATCH
    from rose.transport.failures import BROKER_ERRORS as BROKER_ERRORS
    from rose.transport.failures import CALL as CALL
    from rose.transport.failures import CONNECTION_LOST as CONNECTION_LOST
    from rose.transport.failures import STREAM as STREAM
    from rose.transport.failures import WORKER as WORKER
    from rose.transport.failures import Outage as Outage
    from rose.transport.failures import broker_errors as broker_errors
    from rose.transport.failures import is_overwritten as is_overwritten
    from rose.transport.loop_thread import LoopThread as LoopThread
    from rose.transport.loop_thread import Runner as Runner
    from rose.transport.loop_thread import Work as Work
    from rose.transport.multiplexed import Inbox as Inbox
    from rose.transport.pipeline import field_of as field_of
    from rose.transport.redis_client import AsyncRedisClient as AsyncRedisClient
    from rose.transport.redis_client import RedisClient as RedisClient

__getattr__ = loader(
    __name__,
    {
        "async_subscriptions": ["AsyncSubscriptions"],
        "failures": [
            *("BROKER_ERRORS", "CONNECTION_LOST", "broker_errors", "is_overwritten"),
            *("BATCH", "CALL", "STREAM", "WORKER", "Outage"),
        ],
        "loop_thread": ["LoopThread", "Runner", "Work"],
        "multiplexed": ["Inbox"],
        "pipeline": ["field_of"],
        "redis_client": ["AsyncRedisClient", "RedisClient"],
    },
)
