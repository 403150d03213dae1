"""Celery with Redis: the solo pool and a large prefetch, as its docs advise for short tasks."""

import json
from typing import Any

from celery import Celery

from benchmarks.peers import common
from benchmarks.peers.common import URL, Peer, main

app = Celery("bench", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 128
noop = app.task(common.noop, name="noop")
sleep = app.task(common.sleep, name="sleep")


class CeleryPeer(Peer):
    packages = ("celery", "kombu")
    results = "celery-task-meta-*"

    def worker(self, slots: int | None) -> list[str]:
        pool = ["--pool=threads", f"--concurrency={slots}"] if slots else ["--pool=solo"]
        quiet = ["--without-gossip", "--without-mingle", "--loglevel=WARNING"]
        return ["-m", "celery", "-A", "benchmarks.peers.with_celery", "worker", *pool, *quiet]

    async def enqueue(self, jobs: int) -> None:
        for _ in range(jobs):
            noop.delay()

    async def enqueue_sleeper(self, number: int) -> None:
        sleep.delay(number)

    async def round_trip(self) -> None:
        noop.delay().get(timeout=30)

    def finish_times(self, client: Any, keys: list[bytes]) -> list[float]:
        return [float(json.loads(value)["result"]) for value in client.mget(keys)]


if __name__ == "__main__":
    main(CeleryPeer())
