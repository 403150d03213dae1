"""The builds of the compiled library, and a processor for the one that few have."""

import ctypes
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import pytest

from roseinfer import native
from roseinfer.native import compiler, library

PAIRS = ("amx", "avx512_bf16")  # these multiply pairs of bfloat16

ROOT = Path(__file__).parents[3]

#: Compiles a library for tests alone: with what only they may call, and with what stands in for
#: instructions that this processor may lack.
_STAND_INS = Path(__file__).with_name("avx_vnni.h")
FOR_TESTS = ("-w", "-DROSE_TEST_HOOKS", "-include", str(_STAND_INS))

#: The sources of what is emulated: AMX is a part of one.
_EMULATED = ("avx512_bf16", "avx_vnni")

# Set by sanitize.py: the library to test instead of the installed one.
INSTEAD = os.environ.get("ROSE_TEST_LIBRARY")


def choose(name: str) -> bool:
    """Use a build, if this processor can run it."""
    opened = library.library()
    number = library.builds(opened).get(name)
    return number is not None and bool(opened.rose_choose(number))


def compile_library(*options: str, builds: Collection[str] = compiler.BUILDS) -> Path:
    """The library with these builds and options; kept for other runs in build/."""
    stand_ins = hashlib.sha256(_STAND_INS.read_bytes()).hexdigest()[:8]
    folder = ROOT / "build" / "native"
    folder.mkdir(parents=True, exist_ok=True)
    compiled = folder / f"{compiler.digest(builds, options)}-{stand_ins}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of the tests need it together
        if not compiled.exists():
            compiler.compile_library(compiled, builds, options)
    return compiled


@cache
def with_hooks() -> library.Loaded:
    """The library with what only tests may call: `rose_force` takes any build."""
    path = Path(INSTEAD) if INSTEAD else compile_library("-O0", *FOR_TESTS, builds=_EMULATED)
    loaded = library.open_library(path)
    assert loaded.library is not None, loaded.reason
    return loaded


#: What a processor has that runs these builds but for some instructions: those of AMX, which an
#: emulator executes, and those that `_STAND_INS` has.
NEARLY = {"amx": "avx512_bf16", "avx_vnni": "avx2"}


@contextmanager
def emulated(name: str, folder: Path) -> Iterator[None]:
    """A build of `NEARLY`; the emulator is compiled in `folder`."""
    loaded = with_hooks()
    emulator = _emulator_of_amx(folder) if name == "amx" else nullcontext()
    with pytest.MonkeyPatch.context() as patch, emulator:
        patch.setattr(library, "load", lambda: loaded)
        opened = library.library()
        for number in range(opened.rose_builds()):
            opened.rose_force(number)
            if native.build_name() == name:
                break
        else:
            pytest.skip(f"the compiler knows no {name}")
        yield


@contextmanager
def _emulator_of_amx(folder: Path) -> Iterator[None]:
    compiled = folder / "amx_emulator.so"
    if not compiled.exists():
        source = Path(__file__).with_name("amx_emulator.cpp")
        options = ["-O2", "-shared", "-fPIC", "-std=c++17"]
        subprocess.run(["c++", *options, source, "-o", compiled], check=True)
    emulator = ctypes.CDLL(str(compiled))
    emulator.install()
    try:
        yield
    finally:
        emulator.uninstall()


@contextmanager
def using(name: str, folder: Path) -> Iterator[None]:
    """A build, or no test; those of `NEARLY` by emulation, if need be."""
    usual = native.build_name()
    assert usual is not None
    with ExitStack() as stack:
        stack.callback(choose, usual)
        if not choose(name):
            if name not in NEARLY or not choose(NEARLY[name]):
                pytest.skip(f"this processor has no {name}")
            stack.enter_context(emulated(name, folder))
        yield
