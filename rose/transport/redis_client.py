"""Commands and protocol calls to Redis, repeated while it is in trouble.

Any of them may be repeated after a lost reply: every script of the protocol is safe to repeat
(rose/protocol/calls), and so are the commands that are sent here.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import redis.asyncio
from redis.exceptions import AuthenticationError, AuthorizationError, NoScriptError

from rose.protocol.calls import Call
from rose.protocol.scripts import load
from rose.settings import QueueSettings
from rose.transport.async_cluster import AsyncCluster, open_slots_async
from rose.transport.async_server import AsyncServer, ConnectionLimit
from rose.transport.connection import address_of, connect_async, database_of
from rose.transport.failures import CALL, CONNECTION_LOST
from rose.transport.loop_thread import LoopThread
from rose.transport.pipeline import Command
from rose.transport.redis_internals import async_connector, reply_timeout_s
from rose.transport.urls import Kind

#: Of commands that wait inside Redis each needs a connection.
_UNLIMITED = 10_000


class AsyncPrimary(AsyncServer):
    """One server, or the primary that Sentinels name."""

    def __init__(
        self, client: redis.asyncio.Redis, limit: ConnectionLimit, *, blocking: bool
    ) -> None:
        """`client`: for address and options; its own pool stays empty."""
        pool = client.connection_pool
        super().__init__(async_connector(pool), reply_timeout_s(pool), limit, blocking=blocking)
        self._client = client

    async def aclose(self) -> None:
        await super().aclose()
        await self._client.aclose()


def open_server(
    settings: QueueSettings, reply_timeout_s: float | None, blocking: bool
) -> AsyncServer | AsyncCluster:
    """Raises: ConfigurationError"""
    limit = ConnectionLimit(_UNLIMITED) if blocking else ConnectionLimit()
    if address_of(settings).kind is Kind.CLUSTER:
        timeout_s = reply_timeout_s or settings.redis_timeout_s
        known = open_slots_async(settings, timeout_s)
        return AsyncCluster(known, timeout_s, limit, blocking=blocking)
    client = connect_async(settings, reply_timeout_s=reply_timeout_s)
    return AsyncPrimary(client, limit, blocking=blocking)


class AsyncRedisClient:
    """Of one server or of a cluster, as the settings say. Connects at the first call."""

    def __init__(
        self,
        settings: QueueSettings,
        *,
        reply_timeout_s: float | None = None,
        repeats: int | None = None,
        blocking: bool = False,
    ) -> None:
        """`reply_timeout_s`: the longest silence while a reply is due, where it is not the setting
        that counts. For blocking reads it must exceed their BLOCK time.
        `repeats`: of a call whose connection failed; 0 for a caller that has a loop of its own.
        `blocking`: for commands that wait inside Redis; each has a connection to itself.

        Raises: ConfigurationError
        """
        self.database = database_of(settings)
        self._server = open_server(settings, reply_timeout_s, blocking)
        self._repeats = settings.redis_retries if repeats is None else repeats

    async def aclose(self) -> None:
        await self._server.aclose()

    async def execute(self, *command: str | bytes | int) -> Any:
        """Run one command; its reply as Redis gave it."""
        (reply,) = await self.exchange([command])
        return reply

    async def exchange(self, commands: Iterable[Command]) -> list[Any]:
        """Run commands in one round trip to each node. The replies are as Redis gave them; raises
        the first error among them."""
        commands = list(commands)
        failures = 0
        while True:
            try:
                return await self._server.exchange(commands)
            except (AuthenticationError, AuthorizationError):
                raise
            except CONNECTION_LOST:
                failures += 1
                if failures > self._repeats:
                    raise
            await asyncio.sleep(CALL.pause_s(failures))

    async def run(self, call: Call) -> Any:
        """Run one call and return its raw reply (bytes, ints, lists)."""
        (reply,) = await self.run_many([call])
        return reply

    async def run_many(self, calls: Sequence[Call], *after: Command) -> list[Any]:
        """Run calls, and commands after them, in one round trip to each node; raises the first
        error among the replies."""
        if not calls:
            return []
        try:
            return await self.exchange([*(self._command(call) for call in calls), *after])
        except NoScriptError:
            whole = (self._command(call, whole=True) for call in calls)
            return await self.exchange([*whole, *after])

    async def load_scripts(self, names: Iterable[str]) -> None:
        """Before the first pipeline: fakeredis hangs up at an unknown script in one.

        Not on a cluster: a node that lacks a script says so, and gets it with the call. One that
        says nothing would hold up the start.
        """
        if self._server.sharded:
            return
        for name in names:
            await self.execute("SCRIPT", "LOAD", load(name, self.database).source)

    def _command(self, call: Call, *, whole: bool = False) -> Command:
        script = call.script.sent_to(self.database, sharded=self._server.sharded)
        verb, text = ("EVAL", script.source) if whole else ("EVALSHA", script.sha1)
        return (verb, text, str(len(call.keys)), *call.keys, *call.args)


class RedisClient:
    """The blocking form, for any number of threads."""

    def __init__(self, settings: QueueSettings, *, repeats: int | None = None) -> None:
        self._thread = LoopThread(partial(AsyncRedisClient, settings, repeats=repeats))
        self.call = self._thread.call
        self.close = self._thread.close

    def execute(self, *command: str | bytes | int) -> Any:
        return self.call(lambda redis: redis.execute(*command))

    def run(self, call: Call) -> Any:
        return self.call(lambda redis: redis.run(call))

    def run_many(self, calls: Sequence[Call]) -> list[Any]:
        return self.call(lambda redis: redis.run_many(calls))

    def load_scripts(self, names: Sequence[str]) -> None:
        self.call(lambda redis: redis.load_scripts(names))
