"""What every measurement stands on: a redis-server of its own, and worker processes in it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self

from rose_cli.demo.broker import EmbeddedBroker

_READY_S = 60.0


def fresh_redis() -> EmbeddedBroker:
    """A new server for each measurement, with empty memory and a new append-only file.

    Durable, as the delivery guarantee asks. It does not rewrite its append-only file: when that
    falls due depends on what was written, and its fork would hit one contender and not the next.
    """
    return EmbeddedBroker(fake=False, options={"auto-aof-rewrite-percentage": "0"})


class Worker(Protocol):
    """A running worker process, ready for jobs. Leaving the context ends it."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def wait_ready(self) -> None: ...


class ForeignWorker:
    """A worker of another queue: a command, ended with everything that it has started."""

    def __init__(
        self,
        command: Sequence[str],
        ready: Callable[[str], bool],
        environment: dict[str, str] | None = None,
    ) -> None:
        """`ready` says of what the worker has written so far whether it takes jobs."""
        self._command = list(command)
        self._ready = ready
        self._environment = os.environ | (environment or {})
        self._folder = tempfile.TemporaryDirectory(prefix="rose-bench-")
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )

    def wait_ready(self) -> None:
        """Raises: RuntimeError: it ended, or is not ready in time."""
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if self._ready(self._log.read_text()):
                return
            time.sleep(0.05)
        raise RuntimeError(
            f"worker {' '.join(self._command)} is not ready: {self._log.read_text()[-800:]}"
        )

    def kill(self) -> None:
        """SIGKILL for the worker and all that it has started: no good-bye."""
        if self._process is not None:
            for pid in _with_descendants(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


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
