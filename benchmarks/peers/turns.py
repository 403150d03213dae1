"""A process that takes turns: a JSON request a line on stdin, an answer a line on stdout."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

Answers = Callable[[dict[str, Any]], dict[str, Any]]

_PR_SET_PDEATHSIG = 1


def take_turns(start: Callable[[], tuple[dict[str, Any], Answers]]) -> None:
    """`start` gives the first line, which nobody asked for, and what answers the requests."""
    _end_with_parent()
    # Whatever else is written to stdout goes to stderr: answers go where stdout was.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    greeting, answer = start()
    print(json.dumps(greeting), file=answers)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers)


def _end_with_parent() -> None:
    """Linux: SIGKILL when the parent dies, or it would stay behind, stopped and with its memory."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
