"""A contender in a process group of its own, stopped while it is not its turn."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]


class ProcessGroup:
    """What it prints is in a log, but for the lines that its owner reads."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self._folder = tempfile.TemporaryDirectory(prefix="rose-bench-")
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, talks: bool = False) -> subprocess.Popen[str]:
        """`talks`: over its standard input and output, in lines."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                text=True,
                env=self._environment,
                cwd=_ROOT,
                start_new_session=True,
            )
        return self._process

    @property
    def pid(self) -> int:
        return self._started.pid

    def say(self, line: str) -> None:
        """To one that talks."""
        stdin = self._started.stdin
        if stdin is not None:
            stdin.write(line + "\n")
            stdin.flush()

    def answer(self, name: str) -> str:
        """The next line of one that talks. Raises: RuntimeError: `name` ended instead."""
        stdout = self._started.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            raise RuntimeError(f"{name} ended: {self.last_words}")
        return line

    def end(self) -> None:
        """With all its children. It is not started again."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None
        self._folder.cleanup()

    def freeze(self) -> None:
        """No thread of it can spin until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def last_words(self) -> str:
        return self.log[-2000:]

    @property
    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError(f"{self._command} is not started")
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)
