"""The beginning of the command `rose`: what a signal does while it still imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bench import wait_until

_PID_1 = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture
def _namespaces() -> None:
    try:
        subprocess.run([*_PID_1, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs namespaces for users and processes, and unshare")


def _endless_import(folder: Path) -> tuple[Path, dict[str, str]]:
    """A file that is there once the import has begun, and the environment that leads to it."""
    began = folder / "began"
    (folder / "typer.py").write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(3600)\n"
    )
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return began, os.environ | {"PYTHONPATH": paths}


@pytest.mark.usefixtures("_namespaces")
def test_pid_1_ends_at_sigterm_though_it_still_imports(tmp_path: Path) -> None:
    # given: what the command is made with takes an hour to import
    began, environment = _endless_import(tmp_path)
    started = subprocess.Popen(
        [*_PID_1, sys.executable, "-m", "rose_cli", "worker", "--engine", "null"], env=environment
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


def test_ctrl_c_is_no_traceback_though_it_still_imports(tmp_path: Path) -> None:
    # given
    began, environment = _endless_import(tmp_path)
    started = subprocess.Popen(
        [sys.executable, "-m", "rose_cli", "status"], env=environment, stderr=subprocess.PIPE
    )
    wait_until(began.exists)
    # when
    started.send_signal(signal.SIGINT)
    # then
    _, told = started.communicate(timeout=120)
    assert (started.returncode, told) == (130, b"")


def test_ctrl_c_is_no_traceback_though_a_library_in_c_makes_another_error_of_it(
    tmp_path: Path,
) -> None:
    # given: as numpy, which torch loads, after an import that was interrupted
    began = tmp_path / "began"
    (tmp_path / "torch.py").write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\n"
        "try:\n    time.sleep(3600)\n"
        "except KeyboardInterrupt:\n    raise ImportError('loaded twice') from None\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    started = subprocess.Popen(
        [sys.executable, "-m", "rose_cli", "generate", "hi"],
        env=os.environ | {"PYTHONPATH": paths},
        stderr=subprocess.PIPE,
    )
    wait_until(began.exists)
    # when
    started.send_signal(signal.SIGINT)
    # then
    _, told = started.communicate(timeout=120)
    assert (started.returncode, told) == (-signal.SIGINT, b"")
