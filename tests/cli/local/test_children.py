"""The end of processes that were started here."""

import subprocess
import sys

from rose_cli.local.children import kill

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_process_is_killed_whose_lock_a_signal_has_left_taken() -> None:
    # given: as a handler leaves it that raises inside `poll`
    process = subprocess.Popen(SLEEPS)
    process._waitpid_lock.acquire()  # type: ignore[attr-defined]
    # when
    kill(process)
    # then
    assert process.returncode == -9


def test_a_process_that_has_ended_by_itself_keeps_its_status() -> None:
    # given
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    # when
    kill(process)
    # then
    assert process.returncode == 3
