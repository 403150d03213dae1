"""Where the command `rose` begins: what must be in place before anything large is imported."""

import os
import signal
import sys


def main() -> None:
    # To PID 1, as in a container without an init, no signal comes that it has no handler for. A
    # worker sets its own once it has been imported, which takes a second.
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
    try:
        from rose_cli.main import main as run_command
    except KeyboardInterrupt:
        sys.exit(130)  # as everywhere later: without a traceback
    run_command()


def _end(signum: int, frame: object) -> None:  # noqa: ARG001 - as Python calls it
    """As the signal ends any other process: at once."""
    os._exit(128 + signum)
