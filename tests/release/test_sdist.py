"""The sdist holds all that builds, tests and documents the project."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.deploy.files import ROOT

NOT_SHIPPED = {".gitignore"}


def test_it_holds_every_file_of_the_repository(tmp_path: Path) -> None:
    # given: the files that git knows, in a folder of their own
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("needs a clone of the repository")
    tracked = {name for name in listing.stdout.splitlines() if (ROOT / name).is_file()}
    for name in tracked:
        copy = tmp_path / "src" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    # when
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    words = [sys.executable, "-c", build]
    subprocess.run(words, cwd=tmp_path / "src", check=True, capture_output=True)
    # then
    (archive,) = tmp_path.glob("roseinfer-*.tar.gz")
    with tarfile.open(archive) as opened:
        shipped = {name.partition("/")[2] for name in opened.getnames()}
    assert not {name for name in tracked - NOT_SHIPPED if not name.startswith(".ci/")} - shipped
