"""The builds of the compiled library, and a processor for the one that few have."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from roseinfer import native
from roseinfer.native import library

PAIRS = ("amx", "avx512_bf16")  # these multiply pairs of bfloat16

ROOT = Path(__file__).parents[3]

# Set by sanitize.py: the library to test instead of the installed one.
INSTEAD = os.environ.get("ROSE_TEST_LIBRARY")


def choose(name: str) -> bool:
    """Use a build, if this processor can run it."""
    opened = library.library()
    number = library.builds(opened).get(name)
    return number is not None and bool(opened.rose_choose(number))


def compile_library(*options: str, compiler: Sequence[str] = ("c++",)) -> Path:
    """The library as it is shipped, but with `options` too; kept for other runs in build/.

    Later options win: -O0 makes it in a fraction of the time.
    """
    extension = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    (extension,) = extension["ext-modules"]
    command = [*compiler, "-fPIC", *extension["extra-compile-args"], *options]
    sources = [ROOT / name for name in extension["sources"]]
    digest = hashlib.sha256(" ".join(command).encode())
    for source in (*sources, *(ROOT / name for name in extension["depends"])):
        digest.update(source.read_bytes())
    folder = ROOT / "build" / "native" / digest.hexdigest()[:16]
    compiled = folder / "library.so"
    if not compiled.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Tests of other processes may be at it too: each has files of its own, the last one wins.
        made = [folder / f"{source.stem}.{os.getpid()}.o" for source in sources]
        partial = folder / f"library.{os.getpid()}.so"
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [
                pool.submit(subprocess.run, [*command, "-c", source, "-o", target], check=True)
                for source, target in zip(sources, made, strict=True)
            ]:
                done.result()
        sanitize = [option for option in options if option.startswith("-fsanitize")]
        subprocess.run([*compiler, "-shared", *sanitize, *made, "-o", partial], check=True)
        partial.replace(compiled)
        for target in made:
            target.unlink()
    return compiled


@cache
def with_hooks() -> library.Loaded:
    """The library with what only tests may call: `rose_force` takes any build."""
    path = Path(INSTEAD) if INSTEAD else compile_library("-O0", "-w", "-DROSE_TEST_HOOKS")
    loaded = library.open_library(path)
    assert loaded.library is not None, loaded.reason
    return loaded


@contextmanager
def emulated_amx(folder: Path) -> Iterator[None]:
    """The build with tiles on a processor with all else; the emulator is compiled in `folder`."""
    compiled = folder / "amx_emulator.so"
    if not compiled.exists():
        source = Path(__file__).with_name("amx_emulator.cpp")
        options = ["-O2", "-shared", "-fPIC", "-std=c++17"]
        subprocess.run(["c++", *options, source, "-o", compiled], check=True)
    emulator = ctypes.CDLL(str(compiled))
    loaded = with_hooks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "load", lambda: loaded)
        emulator.install()
        library.library().rose_force(0)
        assert native.build_name() == "amx"
        try:
            yield
        finally:
            emulator.uninstall()


@contextmanager
def using(name: str, folder: Path) -> Iterator[None]:
    """A build, or no test; that with tiles by emulation, if need be: see `emulated_amx`."""
    usual = native.build_name()
    assert usual is not None
    with ExitStack() as stack:
        stack.callback(choose, usual)
        if not choose(name):
            if name != "amx" or not choose("avx512_bf16"):
                pytest.skip(f"this processor has no {name}")
            stack.enter_context(emulated_amx(folder))
        yield
