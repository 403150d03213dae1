"""A process of an old version imports the old product and the harness of today."""

import subprocess
import sys
from pathlib import Path

import pytest

import tests
from rose.errors import ConfigurationError
from tests.chaos.versions import checked_out, environment


def test_the_product_comes_from_the_checkout_and_the_tests_do_not(tmp_path: Path) -> None:
    # given
    tree, folder = tmp_path / "tree", tmp_path / "run"
    for package in ("rose", "worker/rose_worker", "tests"):
        (tree / package).mkdir(parents=True)
        (tree / package / "__init__.py").write_text("")
    folder.mkdir()
    # when
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import rose, rose_worker, tests; "
            "print(*(m.__file__ for m in (rose, rose_worker, tests)), sep='\\n')",
        ],
        env=environment(tree, folder),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    # then
    assert said[:2] == [
        str(tree / package / "__init__.py") for package in ("rose", "worker/rose_worker")
    ]
    assert Path(said[2]).samefile(str(tests.__file__))


def test_what_is_no_commit_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="neither a folder nor a commit"),
        checked_out("no-such-commit", tmp_path),
    ):
        pass
