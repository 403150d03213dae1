"""One figure of the queue, for `cases.cost`: a block of it for each line of standard input.

    python -m benchmarks.tenants.probe submit|drain|tokens|engine|latency COUNT TENANTS

`--old` runs it beside the product of another commit.
"""

import asyncio
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.queue.cases.compared import rate
from benchmarks.queue.ours import (
    PARTITION,
    PROMPT,
    Ended,
    open_client,
    read_ended,
    start_worker,
)
from benchmarks.queue.plain import connect
from benchmarks.queue.stage import fresh_redis
from rose_producer import AsyncClient, Request

_SLOTS, _ENGINE_SLOTS = 256, 32
_TIMEOUT_S = 300.0
_LONG = 50
_POLL_S = 0.02


async def submit(count: int, tenants: int) -> AsyncIterator[float]:
    """Jobs a second into an empty queue."""
    with fresh_redis() as broker:
        async with open_client(broker.url) as client, connect(broker.url) as direct:
            while True:
                requests = _requests(count, tenants)
                began = time.perf_counter()
                await client.submit_many(requests)
                yield count / (time.perf_counter() - began)
                await direct.flushall()


async def drain(count: int, tenants: int) -> AsyncIterator[float]:
    """Jobs of one token a second."""
    async for ended in _drained(count, tenants, 1):
        yield rate([job.ended for job in ended])


async def tokens(count: int, tenants: int) -> AsyncIterator[float]:
    """Tokens a second of long jobs, computed in no time."""
    async for ended in _drained(count, tenants, _LONG):
        yield _tokens_a_second(ended)


async def engine(count: int, tenants: int) -> AsyncIterator[float]:
    """The same, computed by the engine from the built-in model."""
    settings = {"engine": "rose", "max_batch_size": _ENGINE_SLOTS}
    async for ended in _drained(count, tenants, _LONG, **settings):
        yield _tokens_a_second(ended)


async def latency(count: int, tenants: int) -> AsyncIterator[float]:
    """Milliseconds from submit to result, median."""
    with fresh_redis() as broker, start_worker(broker.url) as worker:
        worker.wait_ready()
        async with open_client(broker.url) as client:
            while True:
                seconds = [await _round_trip(client, n, tenants) for n in range(count)]
                yield statistics.median(seconds) * 1000


async def _drained(
    count: int, tenants: int, new_tokens: int, **settings: Any
) -> AsyncIterator[list[Ended]]:
    """The worker stands still while jobs are submitted."""
    given = {"max_batch_size": _SLOTS, **settings}
    with fresh_redis() as broker, start_worker(broker.url, **given) as worker:
        worker.wait_ready()
        async with open_client(broker.url) as client, connect(broker.url) as direct:
            while True:
                worker.signal(signal.SIGSTOP)
                jobs = await client.submit_many(_requests(count, tenants, new_tokens))
                worker.signal(signal.SIGCONT)
                async with asyncio.timeout(_TIMEOUT_S):
                    while int(await direct.hget(PARTITION.load, "tokens") or 0):
                        await asyncio.sleep(_POLL_S)
                yield await read_ended(direct, [job.id for job in jobs])


def _tokens_a_second(ended: list[Ended]) -> float:
    seconds = max(job.ended for job in ended) - min(job.started for job in ended)
    return sum(job.tokens for job in ended) / seconds


async def _round_trip(client: AsyncClient, number: int, tenants: int) -> float:
    began = time.perf_counter()
    (job,) = await client.submit_many([_request(number, tenants)])
    await job.result(timeout_s=30)
    return time.perf_counter() - began


def _requests(count: int, tenants: int, new_tokens: int = 1) -> list[Request]:
    return [_request(number, tenants, new_tokens) for number in range(count)]


def _request(number: int, tenants: int, new_tokens: int = 1) -> Request:
    tenant = f"tenant-{number % tenants}" if tenants else None
    sampling = {"max_new_tokens": new_tokens, "ignore_eos": True}
    return Request(PROMPT, sampling=sampling, tenant=tenant)


async def _serve(blocks: AsyncIterator[float]) -> None:
    while await asyncio.to_thread(sys.stdin.readline):
        print(await anext(blocks), flush=True)


_PROBES = {"submit": submit, "drain": drain, "tokens": tokens, "engine": engine, "latency": latency}

if __name__ == "__main__":
    what, count, tenants = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    asyncio.run(_serve(_PROBES[what](count, tenants)))
