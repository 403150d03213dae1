"""dramatiq with Redis: its defaults, one process of 8 threads."""

from __future__ import annotations

import json
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.common import URL, WARM_UP, main, sleeping, timed, wait_for_results

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL, use_namespace_prefix_keys=True)))
dramatiq.set_broker(broker)


def _noop() -> float:
    return time.time()


def _sleep(number: int) -> None:
    with sleeping(number) as seconds:
        time.sleep(seconds)


noop = dramatiq.actor(_noop, actor_name="noop", store_results=True)
sleep = dramatiq.actor(_sleep, actor_name="sleep", store_results=True)


class Dramatiq:
    packages = ("dramatiq",)

    def worker(self, slots: int | None) -> list[str]:
        flags = ["--processes", "1", "--threads", str(slots or 8)]
        return ["-m", "dramatiq", "benchmarks.peers.with_dramatiq", *flags]

    def submit(self, jobs: int) -> float:
        self.enqueue(WARM_UP)
        return timed(lambda: self.enqueue(jobs))

    def enqueue(self, jobs: int) -> None:
        for _ in range(jobs):
            noop.send()

    def latencies(self, jobs: int) -> list[float]:
        return [timed(lambda: noop.send().get_result(block=True)) for _ in range(jobs)]

    def finish_times(self, jobs: int) -> list[float]:
        return wait_for_results(jobs, "dramatiq-results:*", _read)

    def sleepers(self, jobs: int) -> None:
        for number in range(jobs):
            sleep.send(number)


def _read(client: Any, keys: list[bytes]) -> list[float]:
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.lindex(key, 0)
    return [float(json.loads(value)) for value in pipeline.execute()]


if __name__ == "__main__":
    main(Dramatiq())
