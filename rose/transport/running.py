"""How a protocol call is run on a Redis client.

Calls may be repeated after a lost reply, by the client library or here: every script of the
protocol is safe to repeat (protocol/calls.py). That holds for a part of many calls, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.exceptions import AuthenticationError, AuthorizationError, NoScriptError

from rose.protocol.calls import Call
from rose.protocol.scripts import Script, load
from rose.transport.connection import (
    CONNECTION_LOST,
    REFUSALS,
    AsyncRedis,
    SyncRedis,
    backoff,
    is_cluster,
)
from rose.transport.wire import Command

T = TypeVar("T")


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
    pauses = backoff()
    return (pauses.compute(failures) for failures in range(1, repeats + 1))


def _repeated_on(client: SyncRedis) -> tuple[type[Exception], ...]:
    """What a pipeline does not repeat by itself: replies that are refusals, and on a cluster
    whatever is still wrong after its one repeat."""
    return CONNECTION_LOST if is_cluster(client) else REFUSALS
