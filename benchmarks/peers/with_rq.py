"""RQ: bulk enqueue, and the worker that does not fork for each job."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import redis
from rq import Queue

from benchmarks.peers.common import URL, Peer, main

_CHUNK = 500
_RESULTS = "rq:results:"
_NOOP, _SLEEP = "benchmarks.peers.common.noop", "benchmarks.peers.common.sleep"


class Rq(Peer):
    packages = ("rq",)
    results = _RESULTS + "*"
    _queue: Any

    def worker(self, slots: int | None) -> list[str]:
        start = "from rq.cli import main; main()"
        if slots:  # a worker runs one job at a time
            return ["-c", start, "worker-pool", "--num-workers", str(slots), "--url", URL]
        flags = ["--worker-class", "rq.SimpleWorker", "--quiet", "--url", URL]
        return ["-c", start, "worker", *flags]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        with redis.Redis.from_url(URL) as client:
            self._queue = Queue(connection=client)
            yield

    async def enqueue(self, jobs: int) -> None:
        for start in range(0, jobs, _CHUNK):
            count = min(_CHUNK, jobs - start)
            self._queue.enqueue_many([Queue.prepare_data(_NOOP) for _ in range(count)])

    async def enqueue_sleeper(self, number: int) -> None:
        self._queue.enqueue(_SLEEP, number)

    async def round_trip(self) -> None:
        if self._queue.enqueue(_NOOP).latest_result(timeout=30) is None:
            raise TimeoutError("no result after 30 s")

    def finish_times(self, client: Any, keys: list[bytes]) -> list[float]:
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.hget(b"rq:job:" + key.removeprefix(_RESULTS.encode()), "ended_at")
        return [datetime.fromisoformat(end.decode()).timestamp() for end in pipeline.execute()]


if __name__ == "__main__":
    main(Rq())
