"""RQ: bulk enqueue, and the worker that does not fork for each job."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import redis
from rq import Queue

from benchmarks.peers.common import URL, WARM_UP, main, sleeping, timed, wait_for_results

_CHUNK = 500
_RESULTS = "rq:results:"


def noop() -> float:
    return time.time()


def sleep(number: int) -> None:
    with sleeping(number) as seconds:
        time.sleep(seconds)


class Rq:
    packages = ("rq",)

    def worker(self, slots: int | None) -> list[str]:
        start = "from rq.cli import main; main()"
        if slots:  # a worker runs one job at a time
            return ["-c", start, "worker-pool", "--num-workers", str(slots), "--url", URL]
        flags = ["--worker-class", "rq.SimpleWorker", "--quiet", "--url", URL]
        return ["-c", start, "worker", *flags]

    def submit(self, jobs: int) -> float:
        self.enqueue(WARM_UP)
        return timed(lambda: self.enqueue(jobs))

    def enqueue(self, jobs: int) -> None:
        queue = _queue()
        for start in range(0, jobs, _CHUNK):
            count = min(_CHUNK, jobs - start)
            queue.enqueue_many(
                [Queue.prepare_data("benchmarks.peers.with_rq.noop") for _ in range(count)]
            )

    def latencies(self, jobs: int) -> list[float]:
        queue = _queue()
        return [timed(lambda: _round_trip(queue)) for _ in range(jobs)]

    def finish_times(self, jobs: int) -> list[float]:
        return wait_for_results(jobs, _RESULTS + "*", _read)

    def sleepers(self, jobs: int) -> None:
        queue = _queue()
        for number in range(jobs):
            queue.enqueue("benchmarks.peers.with_rq.sleep", number)


def _queue() -> Any:
    return Queue(connection=redis.Redis.from_url(URL))


def _round_trip(queue: Any) -> None:
    if queue.enqueue("benchmarks.peers.with_rq.noop").latest_result(timeout=30) is None:
        raise TimeoutError("no result after 30 s")


def _read(client: Any, keys: list[bytes]) -> list[float]:
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.hget(b"rq:job:" + key.removeprefix(_RESULTS.encode()), "ended_at")
    return [datetime.fromisoformat(at.decode()).timestamp() for at in pipeline.execute()]


if __name__ == "__main__":
    main(Rq())
