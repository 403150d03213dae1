"""The plain asyncio loop: what Redis streams cost in Python without a queue's promises.

python -m benchmarks.queue.plain URL [--publish]     its worker
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import ResponseError

from benchmarks.queue.stage import Contender, ForeignWorker

_STREAM = "plain:jobs"
_GROUP = "workers"
_RESULT = "plain:result:"
_DONE = "plain:done"
_BATCH = 500
_READ = 64
_READY = "ready"
_POLL_S = 0.1

T = TypeVar("T")


class Plain(Contender):
    name = "plain loop"
    max_jobs = None

    def __init__(self, payload: bytes) -> None:
        """`payload`: a job's bytes, as many as one of ours has."""
        self._payload = payload

    async def submit(self, url: str, jobs: int) -> float:
        """In pipelines of 500 XADDs."""
        async with connect(url) as client:
            await self._add(client, _BATCH)
            began = time.perf_counter()
            await self._add(client, jobs)
            return time.perf_counter() - began

    async def enqueue(self, url: str, jobs: int) -> None:
        async with connect(url) as client:
            await self._add(client, jobs)

    def worker(self, url: str) -> ForeignWorker:
        return _worker(url)

    def serving_worker(self, url: str) -> ForeignWorker:
        return _worker(url, "--publish")

    async def finish_times(self, url: str, jobs: int) -> list[float]:
        async with connect(url) as client:
            keys = await wait_results(client, _STREAM, _RESULT, jobs)
            values: list[Any] = []
            for chunk in chunks(keys, _BATCH):
                values += await client.mget(chunk)
            return [float(value) for value in values]

    async def latencies(self, url: str, jobs: int) -> list[float]:
        async with connect(url) as client, client.pubsub(ignore_subscribe_messages=True) as done:
            await done.subscribe(_DONE)
            return [await self._round_trip(client, done) for _ in range(jobs)]

    async def _round_trip(
        self, client: redis.asyncio.Redis, done: redis.asyncio.client.PubSub
    ) -> float:
        began = time.perf_counter()
        entry = await client.xadd(_STREAM, {"job": self._payload})
        while True:
            message = await done.get_message(timeout=10)
            if message is not None and message["data"].startswith(entry):
                return time.perf_counter() - began

    async def _add(self, client: redis.asyncio.Redis, jobs: int) -> None:
        for start in range(0, jobs, _BATCH):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(_BATCH, jobs - start)):
                pipeline.xadd(_STREAM, {"job": self._payload})
            await pipeline.execute()


def _worker(url: str, *flags: str) -> ForeignWorker:
    command = [sys.executable, "-m", "benchmarks.queue.plain", url, *flags]
    return ForeignWorker(command, ready=lambda log: _READY in log)


async def add_events(url: str, events: Sequence[tuple[str, str, bytes]]) -> float:
    """Seconds for pipelined XADDs of (stream, entry id, event): a token log without a script."""
    async with connect(url) as client:
        await client.ping()
        began = time.perf_counter()
        for chunk in chunks(events, _BATCH):
            pipeline = client.pipeline(transaction=False)
            for stream, entry, event in chunk:
                pipeline.xadd(stream, {"event": event}, id=entry)
            await pipeline.execute()
        return time.perf_counter() - began


async def wait_results(
    client: redis.asyncio.Redis, stream: str, prefix: str, jobs: int
) -> list[bytes]:
    """The keys that begin with `prefix`, one a job, as soon as the stream is empty.

    Raises: RuntimeError: there are fewer, or more.
    """
    while await client.xlen(stream):
        await asyncio.sleep(_POLL_S)
    keys = [key async for key in client.scan_iter(prefix + "*", count=1000)]
    if len(keys) != jobs:
        raise RuntimeError(f"{len(keys)} results of {jobs} jobs begin with {prefix}")
    return keys


def connect(url: str) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(url, protocol=2)


def chunks(items: Sequence[T], size: int) -> list[list[T]]:
    source = iter(items)
    return [list(islice(source, size)) for _ in range(0, len(items), size)]


async def serve(url: str, *, publish: bool) -> None:
    """Read, do nothing, store the result and acknowledge: for ever."""
    async with connect(url) as client:
        with contextlib.suppress(ResponseError):  # it exists
            await client.xgroup_create(_STREAM, _GROUP, "0", mkstream=True)
        print(_READY, flush=True)
        while True:
            reply: Any = await client.xreadgroup(
                _GROUP, "plain", {_STREAM: ">"}, count=_READ, block=1000
            )
            if reply:
                await _finish(client, [entry for entry, _ in reply[0][1]], publish=publish)


async def _finish(client: redis.asyncio.Redis, entries: Sequence[bytes], *, publish: bool) -> None:
    pipeline = client.pipeline(transaction=False)
    now = b"%.6f" % time.time()
    for entry in entries:
        pipeline.xack(_STREAM, _GROUP, entry)
        pipeline.xdel(_STREAM, entry)
        pipeline.set(_RESULT + entry.decode(), now)
        if publish:
            pipeline.publish(_DONE, entry + b" " + now)
    await pipeline.execute()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--publish", action="store_true")
    given = parser.parse_args()
    asyncio.run(serve(given.url, publish=given.publish))
