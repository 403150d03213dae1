"""Celery with Redis: the solo pool and a large prefetch, as its docs advise for short tasks."""

from __future__ import annotations

import json
import time
from typing import Any

from celery import Celery

from benchmarks.peers.common import URL, WARM_UP, main, sleeping, timed, wait_for_results

app = Celery("bench", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 128


def _noop() -> float:
    return time.time()


def _sleep(number: int) -> None:
    with sleeping(number) as seconds:
        time.sleep(seconds)


noop = app.task(_noop, name="noop")
sleep = app.task(_sleep, name="sleep")


class CeleryPeer:
    packages = ("celery", "kombu")

    def worker(self, slots: int | None) -> list[str]:
        pool = ["--pool=threads", f"--concurrency={slots}"] if slots else ["--pool=solo"]
        quiet = ["--without-gossip", "--without-mingle", "--loglevel=WARNING"]
        return ["-m", "celery", "-A", "benchmarks.peers.with_celery", "worker", *pool, *quiet]

    def submit(self, jobs: int) -> float:
        self.enqueue(WARM_UP)
        return timed(lambda: self.enqueue(jobs))

    def enqueue(self, jobs: int) -> None:
        for _ in range(jobs):
            noop.delay()

    def latencies(self, jobs: int) -> list[float]:
        return [timed(lambda: noop.delay().get(timeout=30)) for _ in range(jobs)]

    def finish_times(self, jobs: int) -> list[float]:
        return wait_for_results(jobs, "celery-task-meta-*", _read)

    def sleepers(self, jobs: int) -> None:
        for number in range(jobs):
            sleep.delay(number)


def _read(client: Any, keys: list[bytes]) -> list[float]:
    return [float(json.loads(value)["result"]) for value in client.mget(keys)]


if __name__ == "__main__":
    main(CeleryPeer())
