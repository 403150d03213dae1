"""What every measurement stands on: a redis-server of its own, and worker processes in it."""

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from benchmarks.process_group import ProcessGroup
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess

_READY_S = 60.0


def fresh_redis() -> EmbeddedBroker:
    """A new server for each measurement, with empty memory and a new append-only file.

    Durable, as the delivery guarantee asks. It does not rewrite its append-only file: when that
    falls due depends on what was written, and its fork would hit one contender and not the next.
    """
    return EmbeddedBroker(fake=False, options={"auto-aof-rewrite-percentage": "0"})


class ForeignWorker:
    """A worker of another queue: a command, ended with everything that it has started."""

    def __init__(
        self,
        command: Sequence[str],
        ready: Callable[[str], bool],
        environment: dict[str, str] | None = None,
    ) -> None:
        """`ready` says of what the worker has written so far whether it takes jobs."""
        self._ready = ready
        self._group = ProcessGroup(command, os.environ | (environment or {}))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._group.end()

    def start(self) -> None:
        self._process = self._group.start()

    def wait_ready(self) -> None:
        """Raises: RuntimeError: it ended, or is not ready in time."""
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if self._ready(self._group.log):
                return
            time.sleep(0.05)
        raise RuntimeError(f"a worker is not ready: {self._group.last_words}")

    def kill(self) -> None:
        """SIGKILL for the worker and all that it has started: no good-bye."""
        if self._process is not None:
            for pid in _with_descendants(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Contender(ABC):
    """A queue, and the clients and workers that it comes with."""

    name: str
    max_jobs: int | None
    """where more would take too long"""

    @abstractmethod
    async def submit(self, url: str, jobs: int) -> float:
        """Seconds of a bulk submit."""

    @abstractmethod
    async def enqueue(self, url: str, jobs: int) -> None: ...

    @abstractmethod
    def worker(self, url: str) -> WorkerProcess | ForeignWorker: ...

    @abstractmethod
    async def finish_times(self, url: str, jobs: int) -> list[float]:
        """Waits for all jobs; seconds on any one clock."""

    def serving_worker(self, url: str) -> WorkerProcess | ForeignWorker:
        """One that also says when a job is done."""
        return self.worker(url)

    @abstractmethod
    async def latencies(self, url: str, jobs: int) -> list[float]:
        """Seconds from submit to result, one job after another."""


def _with_descendants(pid: int) -> list[int]:
    """A process group would not do: some queues give each job a group of its own."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    children: dict[int, list[int]] = {}
    for line in listed.stdout.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family
