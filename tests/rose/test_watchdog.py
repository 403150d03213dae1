"""A process that was told to end does so in time, whatever hangs."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rose.watchdog import OVERDUE
from tests.support.bench import wait_until

#: It says how its watchdog is called, and then does something.
_PROGRAM = """
import ctypes, os, signal, sys, time
from rose import logs
from rose.watchdog import Watchdog

logs.configure("info", "text", {})
watchdog = Watchdog(drain_s=float(sys.argv[1]), end_s=0.1)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(print("told", flush=True)))
with watchdog.watching():
    print(watchdog.pid, flush=True)
    exec(sys.argv[2])
"""
_HANGS = "while True: time.sleep(60)"
#: It waits for a lock that it has, with the interpreter's lock, and resumes after signals.
_HANGS_IN_C = """
c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
c.pthread_mutex_lock(lock), c.pthread_mutex_lock(lock)
"""


@contextmanager
def running(what: str, log: Path, drain_s: float = 0.1) -> Iterator[tuple[subprocess.Popen, int]]:
    """A process that does this, and its watchdog's number."""
    command = [sys.executable, "-c", _PROGRAM, str(drain_s), what]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def ended(pid: int) -> bool:
    """Whether or not somebody has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(("what", "status"), [(_HANGS, OVERDUE), (_HANGS_IN_C, -signal.SIGKILL)])
def test_a_signal_ends_what_hangs_and_says_where(what: str, status: int, tmp_path: Path) -> None:
    # given
    log = tmp_path / "log"
    with running(what, log) as (process, keeper):
        # when
        process.send_signal(signal.SIGTERM)
        # then
        assert process.wait(60) == status
        text = log.read_text()
        assert f"process {process.pid} did not end in time after a signal" in text
        assert 'File "<string>", line' in text
        assert 'watchdog.py"' in text, "of all threads"
        # and
        wait_until(lambda: ended(keeper))


def test_a_second_signal_leaves_less_time(tmp_path: Path) -> None:
    with running(_HANGS, tmp_path / "log", drain_s=10_000) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"told\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == OVERDUE


def test_what_ends_by_itself_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running("while not told: time.sleep(0.01)", log, drain_s=10_000) as (process, keeper):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert log.read_text() == ""
        wait_until(lambda: ended(keeper))


def test_a_watchdog_that_is_killed_is_replaced(tmp_path: Path) -> None:
    # given
    log = tmp_path / "log"
    with running(_HANGS, log) as (process, keeper):
        # when
        os.kill(keeper, signal.SIGKILL)
        # then
        wait_until(lambda: "the watchdog has ended (-9): another one is started" in log.read_text())
        # and
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == OVERDUE


def test_a_signal_to_a_group_leaves_the_watchdog(tmp_path: Path) -> None:
    with running(_HANGS, tmp_path / "log", drain_s=10_000) as (process, keeper):
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(keeper, signum)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"told\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == OVERDUE


def test_signals_of_a_fork_are_its_own(tmp_path: Path) -> None:
    # given
    fork = """
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
time.sleep(2)  # many times what the watchdog would leave it
"""
    with running(fork, tmp_path / "log") as (process, _):
        # then
        assert process.stdout.read() == b"told\n7\n"
        assert process.wait(60) == 0


def test_stacks_are_printed_when_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(_HANGS, log) as (process, _):
        process.send_signal(signal.SIGQUIT)
        wait_until(lambda: "most recent call first" in log.read_text())
        assert process.poll() is None


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="of Linux")
def test_a_watchdog_takes_little_memory(tmp_path: Path) -> None:
    with running(_HANGS, tmp_path / "log") as (_, keeper):
        smaps = Path(f"/proc/{keeper}/smaps_rollup")
        # An interpreter without modules has 3.6 MB.
        wait_until(lambda: "Private_Dirty" in smaps.read_text())
        own = sum(int(kb) for kb in re.findall(r"Private_\w+: +(\d+) kB", smaps.read_text()))
        assert own < 8 * 1024
