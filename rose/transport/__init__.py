"""Every connection to Redis: how it is opened, repeated, and listened to.

Each part has an asyncio and a blocking form with parallel names. All is loaded at first use,
because importing redis-py takes as long as the rest of a client does.
"""

from typing import TYPE_CHECKING

from rose.lazy import loader

if TYPE_CHECKING:
    from rose.transport._async.client import AsyncRedisClient as AsyncRedisClient
    from rose.transport._sync.client import RedisClient as RedisClient
    from rose.transport.async_subscriptions import AsyncSubscriptions as AsyncSubscriptions
    from rose.transport.failures import BROKER_ERRORS as BROKER_ERRORS
    from rose.transport.failures import CONNECTION_LOST as CONNECTION_LOST
    from rose.transport.failures import broker_errors as broker_errors
    from rose.transport.pipeline import field_of as field_of
    from rose.transport.retry import BATCH as BATCH
    from rose.transport.retry import CALL as CALL
    from rose.transport.retry import STREAM as STREAM
    from rose.transport.retry import WORKER as WORKER
    from rose.transport.retry import Outage as Outage
    from rose.transport.subscriptions import Subscriptions as Subscriptions

__getattr__ = loader(
    __name__,
    {
        "_async.client": ["AsyncRedisClient"],
        "_sync.client": ["RedisClient"],
        "async_subscriptions": ["AsyncSubscriptions"],
        "failures": ["BROKER_ERRORS", "CONNECTION_LOST", "broker_errors"],
        "pipeline": ["field_of"],
        "retry": ["BATCH", "CALL", "STREAM", "WORKER", "Outage"],
        "subscriptions": ["Subscriptions"],
    },
)
