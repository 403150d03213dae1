"""Ends a process some time after it was told to, whatever hangs.

A loop that stands still handles no signal, a call that hangs ends no thread, and code in C that
keeps the interpreter's lock lets no thread run. So another process keeps the time. The kernel runs
faulthandler's handler in any case, and that writes to a pipe which the other process reads.
"""

import faulthandler
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rose import timekeeper

#: The exit status of a process that did not end by itself in time, if it could still run Python.
OVERDUE = 70

SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("rose.watchdog")


class Watchdog:
    """Belongs to a process that runs until a signal comes. SIGQUIT makes it print its stacks."""

    def __init__(self, drain_s: float, end_s: float) -> None:
        """The process ends `drain_s` and `end_s` after its first signal at the latest, and `end_s`
        after its second."""
        self._times = [str(drain_s), str(end_s)]
        # Both ends stay open here: what one timekeeper has not read, the next one does.
        self._notices, self._notice = os.pipe()
        os.set_blocking(self._notice, False)
        self._watching = False
        self._keeper = self._begin()
        threading.Thread(target=self._follow, name="watchdog", daemon=True).start()
        faulthandler.register(signal.SIGQUIT, 2)
        os.register_at_fork(after_in_child=self._leave)

    @property
    def pid(self) -> int:
        """The timekeeper's."""
        return self._keeper.pid

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile signals count. Inside, nobody sets handlers of them."""
        self._watching = True
        for signum in SIGNALS:
            # Of the thread that gets it: to look at others while they run is not quite safe.
            faulthandler.register(signum, self._notice, all_threads=False, chain=True)
        try:
            yield
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._watching:
            for signum in SIGNALS:
                faulthandler.unregister(signum)
            self._watching = False

    def _begin(self) -> subprocess.Popen[bytes]:
        # Signals may be sent to all processes of a group. What is blocked here stays so there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, signal.SIGHUP, signal.SIGQUIT})
        try:
            return subprocess.Popen(  # noqa: S603 - our own arguments
                [sys.executable, "-I", "-S", timekeeper.__file__, str(os.getpid()), *self._times],
                bufsize=0,
                stdin=self._notices,
                stdout=subprocess.PIPE,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _follow(self) -> None:
        while self._keeper.stdout is None or not self._keeper.stdout.read(1):
            status = self._keeper.wait()
            if status > 0:
                log.error("no watchdog can run here (%d): a signal may not end this", status)
                return
            log.warning("the watchdog has ended (%d): another one is started", status)
            self._keeper = self._begin()
        os._exit(OVERDUE)

    def _leave(self) -> None:
        """A fork is another process: its signals are its own."""
        self._unwatch()
        faulthandler.unregister(signal.SIGQUIT)
        os.close(self._notice)
        os.close(self._notices)
