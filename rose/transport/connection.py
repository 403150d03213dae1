"""Redis clients as roseinfer uses them: how they connect, and what their errors mean."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.retry import Retry

from rose.errors import BrokerUnavailable, ConfigurationError
from rose.settings import QueueSettings
from rose.transport.urls import Address, Kind, parse_address
from rose.transport.wire import Command, RoundTrips

T = TypeVar("T")

#: A Redis that is there and cannot serve now: it starts, is a replica since a moment ago, has lost
#: its primary, or its cluster is being repaired. ClusterDownError has MASTERDOWN in it, AskError
#: MOVED.
REFUSALS = (BusyLoadingError, ReadOnlyError, ClusterDownError, TryAgainError, AskError)

_LOST = (redis.ConnectionError, redis.TimeoutError)

#: Failures after which a reader connects again and goes on from its cursor, and after which a call
#: is repeated. The last two: no node of a cluster tells where a slot is. RedisClusterException is
#: no RedisError.
CONNECTION_LOST = (
    *_LOST,
    *REFUSALS,
    ClusterError,
    RedisClusterException,
)


#: Redis on a command inside a script for which the user lacks a right.
_SCRIPT_REFUSED = "The user executing the script can't"

#: Whatever a Redis client raises.
BROKER_ERRORS = (RedisError, RedisClusterException)


class Cluster(redis.RedisCluster):
    repeats = 0
    """of a call that met trouble, with backoff"""


class AsyncServer(redis.asyncio.Redis):
    """One server, or the one that Sentinels name."""

    @property
    def repeats(self) -> int:
        retry = self.get_retry()
        return retry.get_retries() if retry else 0

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        return await self._round_trips.exchange(commands)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self._round_trips.close()
        await super().aclose(close_connection_pool)

    @cached_property
    def _round_trips(self) -> RoundTrips:
        return RoundTrips(self.connection_pool)


class AsyncCluster(redis.asyncio.RedisCluster):
    repeats = 0

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        # The library knows replies that it would put into another form by upper case.
        said = [(str(verb).lower(), *words) for verb, *words in commands]
        try:
            if len(said) == 1:  # not as a pipeline, which in trouble closes everybody's connections
                return [await self.execute_command(*said[0])]
            pipeline = self.pipeline(transaction=False)
            for words in said:
                pipeline.execute_command(*words)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except AttributeError as error:
            # Such a connection was just being opened.
            raise redis.ConnectionError("closed while it was being opened") from error
        return replies


class _BehindSentinel(redis.Redis):
    """Closes its clients of the Sentinels, too."""

    def close(self) -> None:
        super().close()
        manager: redis.Sentinel = vars(self.connection_pool)["sentinel_manager"]
        for sentinel in manager.sentinels:
            sentinel.close()


class _AsyncBehindSentinel(AsyncServer):
    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        manager: redis.asyncio.Sentinel = vars(self.connection_pool)["sentinel_manager"]
        for sentinel in manager.sentinels:
            await sentinel.aclose()


_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
SyncRedis = redis.Redis | Cluster
AsyncRedis = AsyncServer | AsyncCluster
AnyRedis = TypeVar("AnyRedis", redis.Redis, AsyncServer)


def check_url(settings: QueueSettings) -> None:
    """Raises: ConfigurationError"""
    parse_address(settings.redis_url.get_secret_value())


def connect(settings: QueueSettings, *, retries: int | None = None) -> SyncRedis:
    """`retries`: repeats of a call whose connection failed, where not as the settings say.

    Connects at the first call; to a cluster at once.

    Raises:
        ConfigurationError
        CONNECTION_LOST: no node of the cluster answers.
    """
    address = parse_address(settings.redis_url.get_secret_value())
    repeats = settings.redis_retries if retries is None else retries
    options = _options(settings)
    retry = Retry(backoff(), repeats, supported_errors=(*_LOST, *REFUSALS))
    with _valid_options():
        if address.kind is Kind.CLUSTER:
            return _connect_to_cluster(address, options, repeats)
        if address.kind is Kind.SENTINEL:
            # Not twice to the same Sentinel: the next may know more.
            own = {**options, **address.sentinel, "retry": Retry(NoBackoff(), 0)}
            sentinel = redis.Sentinel(address.nodes, sentinel_kwargs=own, **options)
            given = {**address.options, "retry": retry}
            behind: redis.Redis = sentinel.master_for(
                address.service, redis_class=_BehindSentinel, **given
            )
            return behind
        return _tried(redis.Redis.from_url(address.plain, retry=retry, **options))


def _connect_to_cluster(address: Address, options: dict[str, Any], repeats: int) -> Cluster:
    given = _on_cluster(address, options, repeats, Retry)
    for failures in itertools.count(1):
        nodes = [redis.cluster.ClusterNode(*node) for node in address.nodes]
        try:
            cluster = Cluster(startup_nodes=nodes, **given)
        except CONNECTION_LOST:
            if failures > repeats:
                raise
            time.sleep(backoff().compute(failures))
        else:
            cluster.repeats = repeats
            break
    return cluster


def connect_async(
    settings: QueueSettings, *, retries: int | None = None, reply_timeout_s: float | None = None
) -> AsyncRedis:
    """`reply_timeout_s`: for blocking reads, whose timeout must exceed their BLOCK time.

    Raises:
        ConfigurationError
    """
    address = parse_address(settings.redis_url.get_secret_value())
    repeats = settings.redis_retries if retries is None else retries
    options = _options(settings)
    if reply_timeout_s is not None:
        options["socket_timeout"] = reply_timeout_s
    retry = AsyncRetry(backoff(), repeats, supported_errors=(*_LOST, *REFUSALS))
    with _valid_options():
        if address.kind is Kind.CLUSTER:
            nodes = [redis.asyncio.cluster.ClusterNode(*node) for node in address.nodes]
            cluster = AsyncCluster(
                startup_nodes=nodes, **_on_cluster(address, options, repeats, AsyncRetry)
            )
            cluster.repeats = repeats
            return cluster
        if address.kind is Kind.SENTINEL:
            own = {**options, **address.sentinel, "retry": AsyncRetry(NoBackoff(), 0)}
            sentinel = redis.asyncio.sentinel.Sentinel(
                address.nodes, sentinel_kwargs=own, **options
            )
            given = {**address.options, "retry": retry}
            behind: AsyncServer = sentinel.master_for(
                address.service, redis_class=_AsyncBehindSentinel, **given
            )
            return behind
        server: Any = AsyncServer.from_url(address.plain, retry=retry, **options)
        return _tried(cast(AsyncServer, server))


def _tried(client: AnyRedis) -> AnyRedis:
    """A pool is lazy: without this a misspelt option would come up at the first call."""
    pool = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)
    return client


def backoff() -> ExponentialWithJitterBackoff:
    return ExponentialWithJitterBackoff(cap=2, base=0.1)


def _options(settings: QueueSettings) -> dict[str, Any]:
    return {
        "socket_timeout": settings.redis_timeout_s,
        "socket_connect_timeout": settings.redis_timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 30,
        # Callers are bounded, each has one at a time: refusing one that another has is no help.
        "max_connections": 10_000,
        # Replies have one shape on every server and through every proxy.
        "protocol": 2,
    }


def _on_cluster(
    address: Address, options: dict[str, Any], repeats: int, retry: type[Retry | AsyncRetry]
) -> dict[str, Any]:
    return {
        **options,
        **address.options,
        # The library repeats without a pause. Once, with the cluster's new shape; the rest is ours.
        "retry": retry(backoff(), min(repeats, 1)),
        # Partitions whose node lives go on.
        "require_full_coverage": False,
    }


@contextmanager
def _valid_options() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        # The URL itself stays out of the message: it may hold a password.
        raise ConfigurationError(
            f"ROSE_REDIS_URL cannot be used: an option has a wrong name or value ({error})"
        ) from None


@contextmanager
def broker_errors() -> Iterator[None]:
    """Turn what the Redis client raises into one line of ours.

    Raises:
        BrokerUnavailable
    """
    try:
        yield
    except OutOfMemoryError as error:
        raise BrokerUnavailable(
            "Redis is out of memory (maxmemory): nothing was enqueued, nothing has changed; try "
            "again when jobs have ended and their results have expired, or give it more"
        ) from error
    except BROKER_ERRORS as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, NoPermissionError) or _SCRIPT_REFUSED in reason:
            raise BrokerUnavailable(
                f"Redis refuses the user of ROSE_REDIS_URL: {reason} (deploy/redis/users.acl has "
                "the rights of each part; `ACL LOG` in Redis says which one was missing)"
            ) from error
        raise BrokerUnavailable(
            f"Redis cannot be used: {reason} (is it running, and is ROSE_REDIS_URL right?)"
        ) from error


def is_cluster(client: SyncRedis | AsyncRedis) -> bool:
    return isinstance(client, _CLUSTERS)
