"""arq: msgpack instead of pickle (as its docs offer), polled often, 100 jobs at once."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.peers.common import URL, Peer, concurrently, main, sleeping

_POLL_S = 0.005


async def noop(_: dict[str, Any]) -> float:
    return time.time()


async def sleep(_: dict[str, Any], number: int) -> None:
    with sleeping(number) as seconds:
        await asyncio.sleep(seconds)


def _load(raw: bytes) -> Any:
    return msgpack.unpackb(raw, raw=False)


class WorkerSettings:
    functions = (noop, sleep)
    redis_settings = RedisSettings.from_dsn(URL)
    max_jobs = 100
    poll_delay = _POLL_S
    log_results = False
    job_serializer = msgpack.packb
    job_deserializer = _load


class Arq(Peer):
    packages = ("arq",)
    results = "arq:result:*"
    _pool: Any

    def worker(self, slots: int | None) -> list[str]:  # noqa: ARG002 - 100 are enough
        start = (
            "from arq import run_worker; from benchmarks.peers.with_arq import WorkerSettings; "
            "run_worker(WorkerSettings)"
        )
        return ["-c", start]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        self._pool = await create_pool(
            RedisSettings.from_dsn(URL), job_serializer=msgpack.packb, job_deserializer=_load
        )
        yield
        await self._pool.aclose()

    async def enqueue(self, jobs: int) -> None:
        await concurrently(jobs, lambda: self._pool.enqueue_job("noop"))

    async def enqueue_sleeper(self, number: int) -> None:
        await self._pool.enqueue_job("sleep", number)

    async def round_trip(self) -> None:
        job = await self._pool.enqueue_job("noop")
        await job.result(timeout=30, poll_delay=0.001)

    def finish_times(self, client: Any, keys: list[bytes]) -> list[float]:
        return [float(_load(value)["r"]) for value in client.mget(keys)]


if __name__ == "__main__":
    main(Arq())
