"""Ends a process some time after it was told to, whatever hangs.

A loop that stands still handles no signal, and a call that hangs ends no thread. So a thread of its
own waits, which needs neither a loop, nor a lock, nor the log.
"""

import os
import select
import threading
import time

#: The exit status of a process that did not end by itself in time.
OVERDUE = 70


class LastResort:
    """Belongs to a process that runs until a signal comes. A signal handler may call `arm`."""

    def __init__(self) -> None:
        self._deadline = float("inf")
        self._armed, self._arming = os.pipe()
        threading.Thread(target=self._wait, name="last-resort", daemon=True).start()

    def arm(self, within_s: float) -> None:
        """The process ends after this time at the latest. A later call only brings it forward."""
        self._deadline = min(self._deadline, time.monotonic() + within_s)
        os.write(self._arming, b"!")

    def _wait(self) -> None:
        while (left_s := self._deadline - time.monotonic()) > 0:
            timeout_s = None if left_s == float("inf") else left_s
            if select.select([self._armed], [], [], timeout_s)[0]:
                os.read(self._armed, 64)
        _say("did not end in time after a signal: ended without handing anything back\n")
        os._exit(OVERDUE)


def _say(text: str) -> None:
    """To standard error, unless that would block."""
    if select.select([], [2], [], 0)[1]:
        os.write(2, text.encode())
