"""The builds of the compiled library, and a processor for the one that few have."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roseinfer import native
from roseinfer.native import library

PAIRS = ("amx", "avx512_bf16")  # these multiply pairs of bfloat16


def choose(name: str) -> bool:
    """Use a build, if this processor can run it."""
    found = library.library()
    number = library.builds(found).get(name)
    return number is not None and bool(found.rose_choose(number))


@contextmanager
def emulated_amx(folder: Path) -> Iterator[None]:
    """The build with tiles on a processor with all else; the emulator is compiled in `folder`."""
    compiled = folder / "amx_emulator.so"
    if not compiled.exists():
        source = Path(__file__).with_name("amx_emulator.cpp")
        options = ["-O2", "-shared", "-fPIC", "-std=c++17"]
        subprocess.run(["c++", *options, source, "-o", compiled], check=True)
    emulator = ctypes.CDLL(str(compiled))
    emulator.install()
    library.library().rose_force(0)
    assert native.build_name() == "amx"
    try:
        yield
    finally:
        emulator.uninstall()
