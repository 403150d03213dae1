"""The end of processes that were started here."""

import os
import subprocess
from contextlib import suppress


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL: no good-bye. It has ended then.

    Not by its `wait`: what a signal's handler raises inside `poll` may leave the lock taken that
    both share, and it would wait for ever.
    """
    process.kill()
    if process.poll() is None:
        with suppress(ChildProcessError):  # its end was heard of meanwhile
            _, status = os.waitpid(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
