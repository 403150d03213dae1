"""taskiq with Redis streams: JSON results, one worker process, 100 jobs at once (its default)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskiq.serializers import JSONSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.common import AT_ONCE, URL, WARM_UP, main, sleeping, wait_for_results

broker = RedisStreamBroker(URL).with_result_backend(
    RedisAsyncResultBackend(URL, serializer=JSONSerializer(), prefix_str="result")
)


async def _noop() -> float:
    return time.time()


async def _sleep(number: int) -> None:
    with sleeping(number) as seconds:
        await asyncio.sleep(seconds)


noop = broker.register_task(_noop, task_name="noop")
sleep = broker.register_task(_sleep, task_name="sleep")


class Taskiq:
    packages = ("taskiq", "taskiq-redis")

    def worker(self, slots: int | None) -> list[str]:
        flags = ["--workers=1", "--log-level=WARNING", f"--max-async-tasks={slots or 100}"]
        return ["-m", "taskiq", "worker", "benchmarks.peers.with_taskiq:broker", *flags]

    def submit(self, jobs: int) -> float:
        async def run() -> float:
            async with _started():
                await _submit(WARM_UP)
                began = time.perf_counter()
                await _submit(jobs)
                return time.perf_counter() - began

        return asyncio.run(run())

    def enqueue(self, jobs: int) -> None:
        async def run() -> None:
            async with _started():
                await _submit(jobs)

        asyncio.run(run())

    def latencies(self, jobs: int) -> list[float]:
        async def run() -> list[float]:
            async with _started():
                return [await _round_trip() for _ in range(jobs)]

        return asyncio.run(run())

    def finish_times(self, jobs: int) -> list[float]:
        return wait_for_results(jobs, "result:*", _read)

    def sleepers(self, jobs: int) -> None:
        async def run() -> None:
            async with _started():
                for number in range(jobs):
                    await sleep.kiq(number)

        asyncio.run(run())


@asynccontextmanager
async def _started() -> AsyncIterator[None]:
    await broker.startup()
    yield
    await broker.shutdown()


async def _submit(jobs: int) -> None:
    for start in range(0, jobs, AT_ONCE):
        await asyncio.gather(*(noop.kiq() for _ in range(min(AT_ONCE, jobs - start))))


async def _round_trip() -> float:
    began = time.perf_counter()
    task = await noop.kiq()
    await task.wait_result(check_interval=0.001, timeout=30)
    return time.perf_counter() - began


def _read(client: Any, keys: list[bytes]) -> list[float]:
    return [json.loads(value)["return_value"] for value in client.mget(keys)]


if __name__ == "__main__":
    main(Taskiq())
