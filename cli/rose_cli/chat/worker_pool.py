"""The workers of `rose chat`: always two; one that is killed gets a successor."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from rose.cores import usable_cores
from rose_cli.local.services import WorkerProcess

SIZE = 2


@dataclass(frozen=True, slots=True)
class Killed:
    worker: str
    jobs: int
    """that it held"""
    successor: str


class WorkerPool:
    """Leaving the context kills all workers. Any thread may call it."""

    def __init__(self, redis_url: str, **settings: Any) -> None:
        """`settings`: of each worker."""
        self._redis_url = redis_url
        self._settings: dict[str, Any] = {
            "torch_threads": max(1, usable_cores() // SIZE),
            **settings,
        }
        self._lock = threading.Lock()
        self._workers: list[WorkerProcess] = []
        self._started = 0

    def __enter__(self) -> Self:
        for _ in range(SIZE):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            while self._workers:
                self._workers.pop().__exit__()

    def wait_ready(self, say: Callable[[str], None]) -> None:
        """`say` is told of their progress, and when each is ready.

        Raises: ServiceDied: one ended.
        """
        began = time.monotonic()
        for worker in self._workers:
            worker.wait_ready(say)
            say(f"  {worker.name}: ready after {time.monotonic() - began:.0f} s")

    def kill_one_at_work(self) -> Killed | None:
        """SIGKILL to the worker that holds most jobs, and a successor; None if all are idle."""
        with self._lock:
            jobs = {worker: _jobs(worker) for worker in self._workers}
            victim = max(jobs, key=jobs.__getitem__, default=None)
            if victim is None or not jobs[victim]:
                return None
            self._workers.remove(victim)
            victim.__exit__()
            return Killed(victim.name, jobs[victim], self._start().name)

    def _start(self) -> WorkerProcess:
        self._started += 1
        worker = WorkerProcess(f"worker-{self._started}", self._redis_url, **self._settings)
        self._workers.append(worker.__enter__())
        return worker


def _jobs(worker: WorkerProcess) -> int:
    """In its batch; none while it still loads."""
    return int(worker.metrics().get("rose_batch_sequences", 0))
