"""arq: msgpack instead of pickle (as its docs offer), polled often, 100 jobs at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgpack
from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.peers.common import AT_ONCE, URL, WARM_UP, main, sleeping, wait_for_results

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


class Arq:
    packages = ("arq",)

    def worker(self, slots: int | None) -> list[str]:  # noqa: ARG002 - 100 are enough
        start = (
            "from arq import run_worker; from benchmarks.peers.with_arq import WorkerSettings; "
            "run_worker(WorkerSettings)"
        )
        return ["-c", start]

    def submit(self, jobs: int) -> float:
        async def run() -> float:
            pool = await _pool()
            await _submit(pool, WARM_UP)
            began = time.perf_counter()
            await _submit(pool, jobs)
            seconds = time.perf_counter() - began
            await pool.aclose()
            return seconds

        return asyncio.run(run())

    def enqueue(self, jobs: int) -> None:
        async def run() -> None:
            pool = await _pool()
            await _submit(pool, jobs)
            await pool.aclose()

        asyncio.run(run())

    def latencies(self, jobs: int) -> list[float]:
        async def run() -> list[float]:
            pool = await _pool()
            taken = [await _round_trip(pool) for _ in range(jobs)]
            await pool.aclose()
            return taken

        return asyncio.run(run())

    def finish_times(self, jobs: int) -> list[float]:
        return wait_for_results(jobs, "arq:result:*", _read)

    def sleepers(self, jobs: int) -> None:
        async def run() -> None:
            pool = await _pool()
            for number in range(jobs):
                await pool.enqueue_job("sleep", number)
            await pool.aclose()

        asyncio.run(run())


async def _pool() -> Any:
    return await create_pool(
        RedisSettings.from_dsn(URL), job_serializer=msgpack.packb, job_deserializer=_load
    )


async def _submit(pool: Any, jobs: int) -> None:
    for start in range(0, jobs, AT_ONCE):
        await asyncio.gather(*(pool.enqueue_job("noop") for _ in range(min(AT_ONCE, jobs - start))))


async def _round_trip(pool: Any) -> float:
    began = time.perf_counter()
    job = await pool.enqueue_job("noop")
    await job.result(timeout=30, poll_delay=0.001)
    return time.perf_counter() - began


def _read(client: Any, keys: list[bytes]) -> list[float]:
    return [float(_load(value)["r"]) for value in client.mget(keys)]


if __name__ == "__main__":
    main(Arq())
