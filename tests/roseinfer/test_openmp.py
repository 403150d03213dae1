"""How long OpenMP's threads spin."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_openmp_threads_spin_briefly_unless_told_otherwise(
    given: dict[str, str], spins: str
) -> None:
    # The environment is read when torch loads, so it must be set before: hence a new process.
    code = "import roseinfer._openmp, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_WAIT"))}
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == spins
