"""Redis clients as roseinfer uses them, and how a protocol call is run on one.

Calls may be repeated by the client library after a lost reply: every script of the protocol is
safe to repeat (protocol/calls.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from producer.settings import QueueSettings
from protocol.calls import Call
from protocol.scripts import load
from rose_errors import BrokerUnavailable, ConfigurationError

#: Failures after which a reader connects again and goes on from its cursor.
CONNECTION_LOST = (redis.ConnectionError, redis.TimeoutError)


def connect(settings: QueueSettings, *, retries: int | None = None) -> redis.Redis:
    """`retries`: repeats of a call whose connection failed, where not as the settings say."""
    retry = Retry(_backoff(), settings.redis_retries if retries is None else retries)
    with _valid_url():
        return redis.Redis.from_url(
            settings.redis_url.get_secret_value(), retry=retry, **_options(settings)
        )


def connect_async(
    settings: QueueSettings, *, retries: int | None = None, reply_timeout_s: float | None = None
) -> redis.asyncio.Redis:
    """`reply_timeout_s`: for blocking reads, whose timeout must exceed their BLOCK time."""
    retry = AsyncRetry(_backoff(), settings.redis_retries if retries is None else retries)
    options = _options(settings)
    if reply_timeout_s is not None:
        options["socket_timeout"] = reply_timeout_s
    with _valid_url():
        return redis.asyncio.Redis.from_url(
            settings.redis_url.get_secret_value(), retry=retry, **options
        )


def _backoff() -> ExponentialWithJitterBackoff:
    return ExponentialWithJitterBackoff(cap=2, base=0.1)


def _options(settings: QueueSettings) -> dict[str, Any]:
    return {
        "socket_timeout": settings.redis_timeout_s,
        "socket_connect_timeout": settings.redis_timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 30,
        # Replies have one shape on every server and through every proxy.
        "protocol": 2,
    }


@contextmanager
def _valid_url() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        # The URL itself stays out of the message: it may hold a password.
        raise ConfigurationError(f"ROSE_REDIS_URL cannot be used: {error}") from None


@contextmanager
def broker_errors() -> Iterator[None]:
    """Turn what the Redis client raises into one line of ours.

    Raises:
        BrokerUnavailable
    """
    try:
        yield
    except RedisError as error:
        reason = str(error) or type(error).__name__
        raise BrokerUnavailable(
            f"Redis cannot be used: {reason} (is it running, and is ROSE_REDIS_URL right?)"
        ) from error


def run(client: redis.Redis, call: Call) -> Any:
    """Run one call and return its raw reply (bytes, ints, lists)."""
    keys_and_args = (*call.keys, *call.args)
    try:
        return client.evalsha(call.script.sha1, len(call.keys), *keys_and_args)
    except NoScriptError:
        return client.eval(call.script.source, len(call.keys), *keys_and_args)


def run_many(client: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    """Run calls in one round trip; raises the first error among the replies."""
    if not calls:
        return []
    try:
        return list(_pipeline(client, calls).execute())
    except NoScriptError:
        load_scripts(client, {call.script.name for call in calls})
        return list(_pipeline(client, calls).execute())


def load_scripts(client: redis.Redis, names: Iterable[str]) -> None:
    """Before the first pipeline: fakeredis hangs up on a pipeline that meets an unknown script."""
    for name in names:
        client.script_load(load(name).source)


async def run_async(client: redis.asyncio.Redis, call: Call) -> Any:
    keys_and_args = (*call.keys, *call.args)
    try:
        return await client.evalsha(call.script.sha1, len(call.keys), *keys_and_args)
    except NoScriptError:
        return await client.eval(call.script.source, len(call.keys), *keys_and_args)


async def run_many_async(client: redis.asyncio.Redis, calls: Sequence[Call]) -> list[Any]:
    if not calls:
        return []
    try:
        return list(await _pipeline(client, calls).execute())
    except NoScriptError:
        await load_scripts_async(client, {call.script.name for call in calls})
        return list(await _pipeline(client, calls).execute())


async def load_scripts_async(client: redis.asyncio.Redis, names: Iterable[str]) -> None:
    for name in names:
        await client.script_load(load(name).source)


def _pipeline(client: Any, calls: Sequence[Call]) -> Any:
    """The calls queued on a pipeline of `client`, sync or async alike."""
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.evalsha(call.script.sha1, len(call.keys), *call.keys, *call.args)
    return pipeline
