"""The processes of vLLM's executor must not outlive the worker that started them.

vLLM ends a rank whose worker is gone, but only between two steps. One that waits in a step for
another rank, which hangs, would wait for good.
"""

import multiprocessing
import os
import threading
import time

_POLL_S = 1.0
#: vLLM's own way comes first.
_PATIENCE_S = 10.0


def end_with_parent() -> None:
    """In a process that multiprocessing has started: it ends when the one that did so has. In
    others, those of Ray for one, nothing is done."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.pid,), name="parent", daemon=True).start()


def _follow(parent: int | None) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    time.sleep(_PATIENCE_S)
    os._exit(1)
