"""taskiq with Redis streams: JSON results, one worker process, 100 jobs at once (its default)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskiq.serializers import JSONSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.common import URL, Peer, concurrently, main, sleeping

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


class Taskiq(Peer):
    packages = ("taskiq", "taskiq-redis")
    results = "result:*"

    def worker(self, slots: int | None) -> list[str]:
        flags = ["--workers=1", "--log-level=WARNING", f"--max-async-tasks={slots or 100}"]
        return ["-m", "taskiq", "worker", "benchmarks.peers.with_taskiq:broker", *flags]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        await broker.startup()
        yield
        await broker.shutdown()

    async def enqueue(self, jobs: int) -> None:
        await concurrently(jobs, noop.kiq)

    async def enqueue_sleeper(self, number: int) -> None:
        await sleep.kiq(number)

    async def round_trip(self) -> None:
        task = await noop.kiq()
        await task.wait_result(check_interval=0.001, timeout=30)

    def finish_times(self, client: Any, keys: list[bytes]) -> list[float]:
        return [json.loads(value)["return_value"] for value in client.mget(keys)]


if __name__ == "__main__":
    main(Taskiq())
