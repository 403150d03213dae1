"""Every connection to Redis: how it is opened, repeated, and listened to.

Each part has an asyncio and a blocking form with parallel names. All is loaded at first use,
because redis-py takes half of the time that importing a client would take.
"""

from typing import TYPE_CHECKING

from rose.lazy import loader

if TYPE_CHECKING:
    from rose.transport._async.client import AsyncRedisClient
    from rose.transport._sync.client import RedisClient
    from rose.transport.async_subscriptions import AsyncSubscriptions
    from rose.transport.failures import BROKER_ERRORS, CONNECTION_LOST, broker_errors
    from rose.transport.pipeline import Command, field_of
    from rose.transport.retry import STREAM, WORKER, Backoff, Outage
    from rose.transport.subscriptions import Subscriptions

__all__ = [
    "BROKER_ERRORS",
    "CONNECTION_LOST",
    "STREAM",
    "WORKER",
    "AsyncRedisClient",
    "AsyncSubscriptions",
    "Backoff",
    "Command",
    "Outage",
    "RedisClient",
    "Subscriptions",
    "broker_errors",
    "field_of",
]

__getattr__ = loader(
    __name__,
    {
        "AsyncRedisClient": "rose.transport._async.client",
        "RedisClient": "rose.transport._sync.client",
        "AsyncSubscriptions": "rose.transport.async_subscriptions",
        "Subscriptions": "rose.transport.subscriptions",
        "BROKER_ERRORS": "rose.transport.failures",
        "CONNECTION_LOST": "rose.transport.failures",
        "broker_errors": "rose.transport.failures",
        "Command": "rose.transport.pipeline",
        "field_of": "rose.transport.pipeline",
        "STREAM": "rose.transport.retry",
        "WORKER": "rose.transport.retry",
        "Backoff": "rose.transport.retry",
        "Outage": "rose.transport.retry",
    },
)
