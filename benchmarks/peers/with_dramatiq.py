"""dramatiq with Redis: its defaults, one process of 8 threads."""

import json
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers import common
from benchmarks.peers.common import URL, Peer, main

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL, use_namespace_prefix_keys=True)))
dramatiq.set_broker(broker)
noop = dramatiq.actor(common.noop, actor_name="noop", store_results=True)
sleep = dramatiq.actor(common.sleep, actor_name="sleep", store_results=True)


class Dramatiq(Peer):
    packages = ("dramatiq",)
    results = "dramatiq-results:*"

    def worker(self, slots: int | None) -> list[str]:
        flags = ["--processes", "1", "--threads", str(slots or 8)]
        return ["-m", "dramatiq", "benchmarks.peers.with_dramatiq", *flags]

    async def enqueue(self, jobs: int) -> None:
        for _ in range(jobs):
            noop.send()

    async def enqueue_sleeper(self, number: int) -> None:
        sleep.send(number)

    async def round_trip(self) -> None:
        noop.send().get_result(block=True)

    def finish_times(self, client: Any, keys: list[bytes]) -> list[float]:
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.lindex(key, 0)
        return [float(json.loads(value)) for value in pipeline.execute()]


if __name__ == "__main__":
    main(Dramatiq())
