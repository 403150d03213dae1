"""The process beside a service that ends it in time.

    service --- stacks at its signals ---> stdin     end: the service has ended
       ^                                     |
       +----------- "end yourself" <----- stdout

It imports next to nothing: an interpreter that has only begun takes 10 ms and 4 MB.
"""

import os
import select
import sys
import time

# Numbers that POSIX gives. The module `signal` takes as long to import as all else together.
_SIGQUIT, _SIGKILL = 3, 9

#: What the kernel's signal makes the service write here, even while it runs no Python.
_SIGNALLED = b"Stack (most recent call first):"
#: Time to write the stacks of all threads, and then to end by itself.
_STACKS_S = _YIELD_S = 1.0


def keep_time(pid: int, drain_s: float, end_s: float) -> None:
    """End the process `end_s` after its second signal, or `drain_s + end_s` after its first."""
    deadline, signals = float("inf"), 0
    while (left_s := deadline - time.monotonic()) > 0:
        if _readable(None if left_s == float("inf") else left_s):
            text = os.read(0, 1 << 16)
            if not text:
                return
            for _ in range(text.count(_SIGNALLED)):
                within_s = end_s if signals else drain_s + end_s
                deadline = min(deadline, time.monotonic() + within_s)
                signals += 1
    _say(f"process {pid} did not end in time after a signal: it is ended. Its stacks:\n")
    _send(pid, _SIGQUIT)
    if not _ended(_STACKS_S):
        os.write(1, b"!")
    if not _ended(_YIELD_S):
        _send(pid, _SIGKILL)


def _readable(timeout_s: float | None) -> bool:
    return bool(select.select([0], [], [], timeout_s)[0])


def _ended(within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while (left_s := deadline - time.monotonic()) > 0:
        if _readable(left_s) and not os.read(0, 1 << 16):
            return True
    return False


def _send(pid: int, signum: int) -> None:
    if os.getppid() == pid:  # nobody else has its number
        os.kill(pid, signum)


def _say(text: str) -> None:
    """To standard error, unless that would block."""
    if select.select([], [2], [], 0)[1]:
        os.write(2, text.encode())


if __name__ == "__main__":
    try:
        keep_time(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
    except BrokenPipeError:
        sys.exit(0)
