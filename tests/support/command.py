"""`rose` in this process: a new one takes half a second to import what it needs.

What only a process shows (exit, signals, terminals, bytes) is tested with one.
"""

import io
import os
import subprocess
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import rose_cli.main

#: Runs `rose` with these words, and tells how it ended.
Rose = Callable[..., Any]


def run_rose(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """As `env ... rose words...` ends."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        patch("sys.argv", ["rose", *words]),
        patch("sys.stdin", io.StringIO(stdin)),
        patch.dict(os.environ, env),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            rose_cli.main.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
