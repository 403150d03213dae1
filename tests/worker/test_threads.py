"""How many threads the engine computes with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rose.cores import usable_cores


@pytest.mark.parametrize(
    ("variable", "setting", "threads"),
    [("64", None, usable_cores()), ("1", None, 1), ("1", 3, 3)],
)
def test_there_are_no_more_threads_than_cores_unless_the_setting_says_so(
    variable: str, setting: int | None, threads: int
) -> None:
    code = (
        "from rose_worker.rose_engine import set_threads; import torch\n"
        f"set_threads({setting}); print(torch.get_num_threads())"
    )
    command = ["env", f"OMP_NUM_THREADS={variable}", sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout) == threads
