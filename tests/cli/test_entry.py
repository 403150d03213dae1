"""The beginning of the command `rose`, as PID 1 of a container sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bench import wait_until

_PID_1 = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        subprocess.run([*_PID_1, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs namespaces for users and processes, and unshare")


def test_pid_1_ends_at_sigterm_though_it_still_imports(tmp_path: Path) -> None:
    # given: what the command is made with takes an hour to import
    began = tmp_path / "began"
    (tmp_path / "typer.py").write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(3600)\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    started = subprocess.Popen(
        [*_PID_1, sys.executable, "-m", "rose_cli", "worker", "--engine", "null"],
        env=os.environ | {"PYTHONPATH": paths},
    )
    try:
        wait_until(began.exists)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text()
        # when
        os.kill(int(children), signal.SIGTERM)
        # then
        assert started.wait(120) == 128 + signal.SIGTERM
    finally:
        started.kill()
        started.wait()
