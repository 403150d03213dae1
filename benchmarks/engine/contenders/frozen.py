"""A contender in an environment and a process of its own, frozen while it is not its turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).parents[3]

#: What this process has set for its own threads.
_OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "LD_PRELOAD", "OMP_NUM_THREADS")


class FrozenProcess:
    """`with` starts and ends it. It says a line of JSON about itself, then answers each with one.

    Between turns its whole process group is stopped, so that no thread of it can spin.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.greeting: Mapping[str, Any] = {}
        self._name, self._command, self._environment = name, command, environment
        self._folder = tempfile.TemporaryDirectory(prefix="rose-bench-")
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                cwd=_ROOT,
                start_new_session=True,
            )
        try:
            self.greeting = self._answer()
        except RuntimeError:
            self.__exit__()
            raise
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._running.pid

    def ask(self, what: Mapping[str, Any]) -> Any:
        self._signal(signal.SIGCONT)
        try:
            stdin = self._running.stdin
            if stdin is not None:
                stdin.write(json.dumps(what) + "\n")
                stdin.flush()
            return self._answer()
        finally:
            self._signal(signal.SIGSTOP)

    def _answer(self) -> Any:
        """Raises: RuntimeError: it ended instead."""
        stdout = self._running.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            log = self._log.read_text(errors="replace")
            raise RuntimeError(f"{self._name} ended: {log[-2000:]}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        if self._running.poll() is None:
            os.killpg(self._running.pid, number)

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError(f"{self._name} is not started: use it in a `with`")
        return self._process


def plain_environment() -> dict[str, str]:
    """This process's, without what it has set for its own threads."""
    return {name: value for name, value in os.environ.items() if name not in _OURS}
