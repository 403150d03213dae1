"""What is compiled, when, and where it is kept; a script stands in for the compiler."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roseinfer.native import compiler, library
from tests.roseinfer.native.builds import INSTEAD
from tests.support.bench import wait_until

#: Says that the processor has AVX-512 with VNNI, and notes what it is asked to compile.
_COMPILER = """#!/bin/sh
case "$*" in *-dM*)
    for macro in __AVX512VNNI__ __AVX512F__ __AVX2__; do echo "#define $macro 1"; done
    exit
esac
echo "$*" >> {calls}
while [ $# -gt 1 ]; do shift; done
: > "$1"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the compiler was asked for, a line each."""
    noted, script = tmp_path / "calls", tmp_path / "c++"
    script.write_text(_COMPILER.format(calls=noted))
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return noted


def compiled(calls: Path) -> set[str]:
    """The sources that were compiled."""
    words = calls.read_text().split() if calls.exists() else []
    return {Path(word).stem for word in words if word.endswith(".cpp")}


@pytest.mark.parametrize(
    ("wanted", "builds"),
    [
        ("", {"avx512_vnni", "avx512"}),
        ("avx2", {"avx512_vnni", "avx512", "avx2"}),
        ("all", set(compiler.BUILDS)),
    ],
)
def test_the_fastest_builds_of_this_processor_are_compiled_and_the_one_that_is_named(
    calls: Path, wanted: str, builds: set[str]
) -> None:
    # when
    compiler.cached_library(wanted, lambda: None)
    # then
    assert compiled(calls) == {"library", "placement", *builds}


def test_it_is_compiled_once(calls: Path) -> None:
    # given
    said: list[str] = []
    first = compiler.cached_library("", lambda: said.append("compiling"))
    calls.unlink()
    # when
    second = compiler.cached_library("", lambda: said.append("compiling"))
    # then
    assert (first, said) == (second, ["compiling"])
    assert compiled(calls) == set()


def test_where_every_build_is_compiled_nothing_else_is(calls: Path) -> None:
    # given
    whole = compiler.cached_library("all", lambda: None)
    calls.unlink()
    # when
    library = compiler.cached_library("", lambda: None)
    # then
    assert library == whole
    assert compiled(calls) == set()


def test_what_a_killed_compile_has_left_is_removed_by_the_next(calls: Path, tmp_path: Path) -> None:
    # given
    script = Path(os.environ["CXX"])
    compiles = script.read_text()
    script.write_text(compiles.replace("while", "sleep 600; while"))
    command = [sys.executable, compiler.__file__]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            wait_until(calls.exists)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    cache = tmp_path / "cache" / "roseinfer" / "native"
    assert any(path.is_dir() for path in cache.iterdir())
    script.write_text(compiles)
    # when
    made = compiler.cached_library("", lambda: None)
    # then
    assert {path.name for path in cache.iterdir()} == {made.name, "lock"}


def test_a_cache_into_which_others_may_write_is_not_used(calls: Path, tmp_path: Path) -> None:
    # given
    folder = tmp_path / "cache" / "roseinfer" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    # when, then
    with pytest.raises(PermissionError, match="others may write into"):
        compiler.cached_library("", lambda: None)
    assert compiled(calls) == set()


@pytest.mark.skipif(INSTEAD is not None, reason="another library is tested")
@pytest.mark.parametrize(
    ("command", "reason"),
    [("/nowhere/c++", "No such file"), ("sh -c 'echo wrong >&2; exit 1'", "wrong")],
)
def test_where_it_cannot_be_compiled_the_reason_is_known(
    command: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given
    monkeypatch.setenv("CXX", command)
    monkeypatch.setattr(library, "_RELEASED", tmp_path / "none")
    # when
    loaded = library.load.__wrapped__()
    # then
    assert loaded.library is None
    assert loaded.reason.startswith("it cannot be compiled: ")
    assert reason in loaded.reason
