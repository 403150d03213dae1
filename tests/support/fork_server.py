"""A process that has imported what others need, and forks them from itself as it is asked."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.children import Child, adopt_orphans, fork_orphan

_ROOT = Path(__file__).resolve().parents[2]


class ForkServer:
    """What it forks is a child of this process."""

    def __init__(self, *command: str, pass_fds: Sequence[int] = ()) -> None:
        """Starts `python -m COMMAND`, whose module calls `forked`."""
        adopt_orphans()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=pass_fds,
            text=True,
            cwd=_ROOT,  # where the module is found
        )

    def fork(self, asked: Any) -> Child:
        """`asked`: what JSON can say, for the fork."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            return Child(int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def forked() -> Any | None:
    """Fork as `ForkServer` asks. In a fork: what was asked; else None, at the end."""
    for line in sys.stdin:
        pid = fork_orphan()
        if pid == 0:
            return json.loads(line)
        print(pid, flush=True)
    return None
