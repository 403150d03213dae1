"""The clients of redis-py as roseinfer makes them: where to, with which options.

They repeat nothing by themselves: that is `rose.transport.retry`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from rose.errors import ConfigurationError
from rose.settings import QueueSettings
from rose.transport.redis_internals import sentinels_of, try_options
from rose.transport.urls import Address, Kind, parse_address

#: A cluster's client is told where a slot is now by an error, and then needs a second go.
_REPEATS_ON_CLUSTER = 1


class _BehindSentinel(redis.Redis):
    """Closes its clients of the Sentinels, too."""

    def close(self) -> None:
        super().close()
        for sentinel in sentinels_of(self):
            sentinel.close()


class _AsyncBehindSentinel(redis.asyncio.Redis):
    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in sentinels_of(self):
            await sentinel.aclose()


def connect(
    settings: QueueSettings, *, reply_timeout_s: float | None = None
) -> redis.Redis | redis.RedisCluster:
    """Connects at the first call; to a cluster at once.

    `reply_timeout_s`: for blocking reads, whose timeout must exceed their BLOCK time.

    Raises:
        ConfigurationError
        CONNECTION_LOST: no node of the cluster answers.
    """
    address = address_of(settings)
    options = _options(settings, Retry(NoBackoff(), 0), reply_timeout_s)
    with _valid_options():
        if address.kind is Kind.CLUSTER:
            nodes = [redis.cluster.ClusterNode(*node) for node in address.nodes]
            retry = Retry(NoBackoff(), _REPEATS_ON_CLUSTER)
            return redis.RedisCluster(startup_nodes=nodes, **_on_cluster(address, options, retry))
        if address.kind is Kind.SENTINEL:
            own = {**options, **address.sentinel}
            sentinel = redis.Sentinel(address.nodes, sentinel_kwargs=own, **options)
            behind: redis.Redis = sentinel.master_for(
                address.service, redis_class=_BehindSentinel, **address.options
            )
            return behind
        client = redis.Redis.from_url(address.plain, **options)
        try_options(client)
        return client


def connect_async(
    settings: QueueSettings, *, reply_timeout_s: float | None = None
) -> redis.asyncio.Redis | redis.asyncio.RedisCluster:
    """As `connect`, but connects to a cluster at the first call, too."""
    address = address_of(settings)
    options = _options(settings, AsyncRetry(NoBackoff(), 0), reply_timeout_s)
    with _valid_options():
        if address.kind is Kind.CLUSTER:
            nodes = [redis.asyncio.cluster.ClusterNode(*node) for node in address.nodes]
            retry = AsyncRetry(NoBackoff(), _REPEATS_ON_CLUSTER)
            return redis.asyncio.RedisCluster(
                startup_nodes=nodes, **_on_cluster(address, options, retry)
            )
        if address.kind is Kind.SENTINEL:
            own = {**options, **address.sentinel}
            sentinel = redis.asyncio.sentinel.Sentinel(
                address.nodes, sentinel_kwargs=own, **options
            )
            behind: redis.asyncio.Redis = sentinel.master_for(
                address.service, redis_class=_AsyncBehindSentinel, **address.options
            )
            return behind
        client = redis.asyncio.Redis.from_url(address.plain, **options)
        try_options(client)
        return client


def address_of(settings: QueueSettings) -> Address:
    """Raises: ConfigurationError"""
    return parse_address(settings.redis_url.get_secret_value())


def _options(
    settings: QueueSettings, retry: Retry | AsyncRetry, reply_timeout_s: float | None
) -> dict[str, Any]:
    return {
        "socket_timeout": reply_timeout_s or settings.redis_timeout_s,
        "socket_connect_timeout": settings.redis_timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 30,
        # Callers are bounded, each has one at a time: refusing one that another has is no help.
        "max_connections": 10_000,
        # Replies have one shape on every server and through every proxy.
        "protocol": 2,
        "retry": retry,
    }


def _on_cluster(
    address: Address, options: dict[str, Any], retry: Retry | AsyncRetry
) -> dict[str, Any]:
    # Partitions whose node lives go on.
    return {**options, **address.options, "retry": retry, "require_full_coverage": False}


@contextmanager
def _valid_options() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        # The URL itself stays out of the message: it may hold a password.
        raise ConfigurationError(
            f"ROSE_REDIS_URL cannot be used: an option has a wrong name or value ({error})"
        ) from None
