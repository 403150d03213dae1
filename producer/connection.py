"""Redis clients as roseinfer uses them, and how a protocol call is run on one.

Calls may be repeated after a lost reply, by the client library or here: every script of the
protocol is safe to repeat (protocol/calls.py). That holds for a part of many calls, too.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.retry import Retry

from producer.settings import QueueSettings
from producer.urls import Address, Kind, parse_address
from producer.wire import Command, RoundTrips
from protocol.calls import Call
from protocol.scripts import Script, load
from rose_errors import BrokerUnavailable, ConfigurationError

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
    retry = Retry(_backoff(), repeats, supported_errors=(*_LOST, *REFUSALS))
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
            time.sleep(_backoff().compute(failures))
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
    retry = AsyncRetry(_backoff(), repeats, supported_errors=(*_LOST, *REFUSALS))
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


def _backoff() -> ExponentialWithJitterBackoff:
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
        "retry": retry(_backoff(), min(repeats, 1)),
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


def patiently(client: SyncRedis, work: Callable[[], T]) -> T:
    """Run `work`, which calls `client`; on a cluster, repeat it while that is in trouble."""
    for pause_s in _pauses_s(client) if is_cluster(client) else ():
        try:
            return work()
        except CONNECTION_LOST:
            time.sleep(pause_s)
    return work()  # a client of one server repeats by itself


def run(client: SyncRedis, call: Call) -> Any:
    """Run one call and return its raw reply (bytes, ints, lists)."""
    return patiently(client, lambda: _evaluate(client, call))


def _evaluate(client: SyncRedis, call: Call) -> Any:
    script, keys_and_args = _script(client, call), (*call.keys, *call.args)
    try:
        return client.evalsha(script.sha1, len(call.keys), *keys_and_args)
    except NoScriptError:
        return client.eval(script.source, len(call.keys), *keys_and_args)


def run_many(client: SyncRedis, calls: Sequence[Call]) -> list[Any]:
    """Run calls in one round trip to each node; raises the first error among the replies."""
    for pause_s in _pauses_s(client):
        try:
            return _evaluate_many(client, calls)
        except _repeated_on(client):
            time.sleep(pause_s)
    return _evaluate_many(client, calls)


def _evaluate_many(client: SyncRedis, calls: Sequence[Call]) -> list[Any]:
    if not calls:
        return []
    replies = _pipeline(client, calls).execute(raise_on_error=False)
    if any(isinstance(reply, NoScriptError) for reply in replies):
        load_scripts(client, {call.script.name for call in calls})
        replies = _pipeline(client, calls).execute(raise_on_error=False)
    return _without_errors(replies)


def load_scripts(client: SyncRedis, names: Iterable[str]) -> None:
    """On every primary. Before the first pipeline: fakeredis hangs up on a pipeline that meets an
    unknown script."""
    sharded = isinstance(client, redis.RedisCluster)
    for name in names:
        client.script_load(load(name, sharded=sharded).source)


async def exchange(client: AsyncRedis, commands: Iterable[Command]) -> list[Any]:
    """Run commands that may be repeated, in one round trip to each node. The replies are as Redis
    gave them; raises the first error among them."""
    commands = list(commands)
    pauses_s: Iterator[float] | None = None
    while True:
        try:
            return _without_errors(await client.exchange(commands))
        except (AuthenticationError, AuthorizationError):
            raise
        except CONNECTION_LOST:
            pauses_s = pauses_s or _pauses_s(client)
            pause_s = next(pauses_s, None)
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)


async def run_async(client: AsyncRedis, call: Call) -> Any:
    return (await run_many_async(client, [call]))[0]


async def run_many_async(client: AsyncRedis, calls: Sequence[Call]) -> list[Any]:
    """Run calls in one round trip to each node; raises the first error among the replies."""
    if not calls:
        return []
    try:
        return await exchange(client, _commands(client, calls))
    except NoScriptError:
        return await exchange(client, _commands(client, calls, whole=True))


def _commands(
    client: AsyncRedis, calls: Sequence[Call], *, whole: bool = False
) -> Iterator[Command]:
    for call in calls:
        script = _script(client, call)
        verb, text = ("EVAL", script.source) if whole else ("EVALSHA", script.sha1)
        yield (verb, text, len(call.keys), *call.keys, *call.args)


async def load_scripts_async(client: AsyncRedis, names: Iterable[str]) -> None:
    sharded = isinstance(client, redis.asyncio.RedisCluster)
    for name in names:
        await client.script_load(load(name, sharded=sharded).source)


def _script(client: SyncRedis | AsyncRedis, call: Call) -> Script:
    return call.script.sharded if is_cluster(client) else call.script


def is_cluster(client: SyncRedis | AsyncRedis) -> bool:
    return isinstance(client, _CLUSTERS)


def _pipeline(client: Any, calls: Sequence[Call]) -> Any:
    """The calls queued on a pipeline of a blocking client, of one server or of a cluster."""
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        sha1 = _script(client, call).sha1
        # A pipeline of a cluster blocks `evalsha`, which it can route as well as any other.
        pipeline.execute_command("EVALSHA", sha1, len(call.keys), *call.keys, *call.args)
    return pipeline


def _without_errors(replies: Sequence[Any]) -> list[Any]:
    """Raised here and not by the pipeline, which would quote the call and with it the prompt."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return list(replies)


def _pauses_s(client: SyncRedis | AsyncRedis) -> Iterator[float]:
    """One before each repeat."""
    if isinstance(client, redis.Redis):
        retry = client.get_retry()
        repeats = retry.get_retries() if retry else 0
    else:
        repeats = client.repeats
    backoff = _backoff()
    return (backoff.compute(failures) for failures in range(1, repeats + 1))


def _repeated_on(client: SyncRedis) -> tuple[type[Exception], ...]:
    """What a pipeline does not repeat by itself: replies that are refusals, and on a cluster
    whatever is still wrong after its one repeat."""
    return CONNECTION_LOST if is_cluster(client) else REFUSALS
