"""One figure of the queue, for `cases.cost`.

    python -m benchmarks.tenants.probe submit|drain|tokens|latency COUNT TENANTS

It also runs beside an older version of the product, where nobody has a tenant.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
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

_SLOTS = 256
_WARM_UP = 500
_TIMEOUT_S = 300.0
_LONG = 50
_POLL_S = 0.05


async def submit(count: int, tenants: int) -> float:
    """Jobs a second."""
    with fresh_redis() as broker:
        async with open_client(broker.url) as client:
            await client.submit_many(_requests(_WARM_UP, tenants))
            requests = _requests(count, tenants)
            began = time.perf_counter()
            await client.submit_many(requests)
            return count / (time.perf_counter() - began)


async def drain(count: int, tenants: int) -> float:
    """Jobs of one token a second."""
    return rate([job.ended for job in await _drained(count, tenants, 1)])


async def tokens(count: int, tenants: int) -> float:
    """Tokens a second of long jobs."""
    ended = await _drained(count, tenants, _LONG)
    seconds = max(job.ended for job in ended) - min(job.started for job in ended)
    return sum(job.tokens for job in ended) / seconds


async def latency(count: int, tenants: int) -> float:
    """Milliseconds from submit to result, median."""
    with fresh_redis() as broker, start_worker(broker.url) as worker:
        worker.wait_ready()
        async with open_client(broker.url) as client:
            seconds = [await _round_trip(client, n, tenants) for n in range(50 + count)]
    return statistics.median(seconds[50:]) * 1000


async def _drained(count: int, tenants: int, new_tokens: int) -> list[Ended]:
    with fresh_redis() as broker:
        async with open_client(broker.url) as client:
            ids = [j.id for j in await client.submit_many(_requests(count, tenants, new_tokens))]
        with start_worker(broker.url, max_batch_size=_SLOTS):
            async with asyncio.timeout(_TIMEOUT_S), connect(broker.url) as direct:
                while int(await direct.hget(PARTITION.load, "tokens") or 0):
                    await asyncio.sleep(_POLL_S)
                return await read_ended(direct, ids)


async def _round_trip(client: AsyncClient, number: int, tenants: int) -> float:
    began = time.perf_counter()
    (job,) = await client.submit_many([_request(number, tenants)])
    await job.result(timeout_s=30)
    return time.perf_counter() - began


def _requests(count: int, tenants: int, new_tokens: int = 1) -> list[Request]:
    return [_request(number, tenants, new_tokens) for number in range(count)]


def _request(number: int, tenants: int, new_tokens: int = 1) -> Request:
    """An older version knows no tenants, so the word is not said where there are none."""
    whose: Any = {"tenant": f"tenant-{number % tenants}"} if tenants else {}
    return Request(PROMPT, sampling={"max_new_tokens": new_tokens}, **whose)


_PROBES = {"submit": submit, "drain": drain, "tokens": tokens, "latency": latency}

if __name__ == "__main__":
    what, count, tenants = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(asyncio.run(_PROBES[what](count, tenants)))
