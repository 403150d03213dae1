"""Forked processes, as `subprocess.Popen` shows those that it has started."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Child:
    """A forked process, with what `subprocess.Popen` offers."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self._wait(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """`timeout`: seconds. Raises: subprocess.TimeoutExpired"""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            self._wait(0 if deadline is None else os.WNOHANG)
            if self.returncode is None:
                if timeout is not None and time.monotonic() > (deadline or 0.0):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
                time.sleep(0.005)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def adopt_orphans() -> None:
    """A process whose parent dies becomes ours, if one of ours began it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def fork_orphan() -> int:
    """As `os.fork`, but the child's parent is whoever adopts orphans: when that dies, however it
    does, the child is killed. Gives its id; 0 in it."""
    told, tell = os.pipe()
    between = os.fork()
    if between == 0:
        first_parent = os.getpid()
        child = os.fork()
        if child == 0:
            _end_with_the_next(first_parent)
            return 0
        os.write(tell, str(child).encode())
        os._exit(0)
    pid = int(os.read(told, 32))
    os.waitpid(between, 0)  # now it has been adopted
    os.close(told)
    os.close(tell)
    return pid


def _end_with_the_next(parent: int) -> None:
    """Linux kills this process when its parent after `parent` dies."""
    while (adopter := os.getppid()) == parent:
        time.sleep(0.0005)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != adopter:
        os._exit(1)  # it has died meanwhile


def end_with(parent: int) -> None:
    """Linux kills this process, of the program that it becomes too, when `parent` dies, which began
    it: `preexec_fn=partial(end_with, os.getpid())`."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has died meanwhile


def begin(words: Sequence[str | Path], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """A program that prints into `log`, and ends with this process, however that does. `options`
    are those of `subprocess.Popen`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            words,
            stdout=output,
            stderr=output,
            preexec_fn=partial(end_with, os.getpid()),
            **options,
        )


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def redirect(log: str) -> None:
    """What this process prints goes there. It has no other files but its standard ones."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.closerange(3, 256)
