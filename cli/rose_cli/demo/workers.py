"""Worker processes, started as a user would: `rose worker`."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

from rose.errors import RoseError
from rose_cli.demo.broker import free_port
from rose_cli.top.frames import scrape

_STOP_S = 30
_LOOK_S = 0.05


class WorkerDied(RoseError):
    code = "worker_died"


class WorkerProcess:
    """One `rose worker`. Leaving the context kills it if it still runs."""

    def __init__(
        self,
        name: str,
        redis_url: str,
        *,
        program: Sequence[str] = ("rose_cli", "worker"),
        **settings: str | float,
    ) -> None:
        """`settings` as in worker.settings, underscores for dashes. `program`: a module, and its
        arguments before the settings."""
        self.name = name
        self.http_port = free_port()
        given = {
            "name": name,
            "redis_url": redis_url,
            "http_port": self.http_port,
            **settings,
        }
        self._command = [sys.executable, "-m", *program] + [
            f"--{key.replace('_', '-')}={value}" for key, value in given.items()
        ]
        self._folder = tempfile.TemporaryDirectory(prefix="rose-worker-")
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.signal(signal.SIGCONT)
            self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                self._command, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Raises: WorkerDied: it ended, or is not ready in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.is_ready():
                return
            time.sleep(_LOOK_S)
        raise WorkerDied(f"worker {self.name} is not ready after {timeout_s:g} s")

    def is_ready(self) -> bool:
        """Raises: WorkerDied: it ended."""
        if not self.running:
            raise WorkerDied(f"worker {self.name} ended: {self.log[-500:].strip()}")
        return self.http("/readyz") is not None

    def signal(self, signum: int) -> None:
        if self._process is not None:
            self._process.send_signal(signum)

    def kill(self) -> None:
        """SIGKILL: no good-bye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        """SIGTERM, and its exit status."""
        if self._process is None:
            raise WorkerDied(f"worker {self.name} was never started")
        self._process.terminate()
        return self._process.wait(_STOP_S)

    def http(self, path: str) -> str | None:
        """The page, or None when there is no good answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}{path}", timeout=2
            ) as answer:
                body: bytes = answer.read()
                return body.decode()
        except (OSError, HTTPException):  # the worker may be killed in the middle of the page
            return None

    def metrics(self) -> dict[str, float]:
        return read_metrics(self.http_port)


@contextmanager
def two_workers(redis_url: str, **settings: Any) -> Iterator[list[WorkerProcess]]:
    """Both with `settings`, on one thread each; they start at the same time."""
    with ExitStack() as stack:
        workers = [
            WorkerProcess(name, redis_url, torch_threads=1, **settings)
            for name in ("worker-a", "worker-b")
        ]
        yield [stack.enter_context(worker) for worker in workers]


def read_metrics(http_port: int) -> dict[str, float]:
    """Samples by name, added up over their labels; empty when the worker is dead."""
    found = scrape(("127.0.0.1", http_port))
    return found.samples if found else {}
