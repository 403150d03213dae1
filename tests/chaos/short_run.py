"""A run of chaos short enough for a test, in a process of its own."""

import json
import subprocess
import sys
from typing import Any


def short_run(module: str, *words: str) -> Any:
    """What `python -m MODULE WORDS --json` says, if nothing was violated."""
    run = subprocess.run(
        [sys.executable, "-m", module, *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
