"""The wheel, and environments into which it is installed."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, build_context

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
_OFFLINE = ("--no-deps", "--no-index")


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree, made of what the image's build sees, without the compiled library."""
    source = folder / "src"
    source.mkdir()
    for name in build_context():
        path = ROOT / name
        if path.is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(path, source / name, ignore=skipped)
        else:
            shutil.copy(path, source / name)
    built = [*_PIP, "wheel", *_OFFLINE, "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(built, check=True, capture_output=True)
    (wheel,) = folder.glob("roseinfer-*.whl")
    return wheel


def new_environment(folder: Path) -> Path:
    """Makes an environment that shares the tests' dependencies; returns its site-packages."""
    venv.create(folder, with_pip=False)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return site


def install(wheel: Path, environment: Path) -> None:
    """As `pip install` does, without the dependencies."""
    python = str(environment / "bin" / "python")
    subprocess.run([*_PIP, "--python", python, "install", *_OFFLINE, str(wheel)], check=True)
