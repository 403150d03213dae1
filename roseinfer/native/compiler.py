"""Compiles the decoder: when it is first needed, for the processor that needs it.

An installation compiles nothing, since most of them are clients. A release's wheel brings the
library with all builds; elsewhere an engine makes one of the two fastest builds for its processor,
once, in the user's cache. `python roseinfer/native/compiler.py` does the same beforehand, and
imports nothing that must be installed.
"""

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: From the widest vectors to the narrowest: what a compiler for this very processor defines where
#: it runs them. Each has a source of its name, and library.cpp chooses.
BUILDS = {
    "avx512_bf16": "__AVX512BF16__",
    "avx512_vnni": "__AVX512VNNI__",
    "avx512": "__AVX512F__",
    "avx_vnni": "__AVXVNNI__",
    "avx2": "__AVX2__",
    "portable": "",
}
#: The fastest may not pay, or the system may keep its registers from a process: then the next.
_BESIDE_EACH_OTHER = 2

# No -fopenmp for the linker: the library uses the runtime that torch brings (roseinfer/_openmp.py).
_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    *("-fno-signed-zeros", "-fvisibility=hidden", "-Wall", "-Wextra"),
)
_FOLDER = Path(__file__).parent

_UNFINISHED = "unfinished-"  # what a compile's folder beside its target begins with


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX") or "c++")


def compile_library(target: Path, builds: Collection[str], options: Sequence[str] = ()) -> None:
    """Compile these builds into a library. Later options win: -O0 takes a fraction of the time.

    Raises:
        OSError: there is no compiler, or no room.
        subprocess.CalledProcessError: it refused, as its stderr says.
    """
    without = [f"-DROSE_WITHOUT_{name.upper()}" for name in BUILDS if name not in builds]
    command = [*compiler(), *_FLAGS, *without, *options]
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=target.parent) as folder,
        ThreadPoolExecutor(_cores()) as pool,
    ):
        sources = [_FOLDER / f"{name}.cpp" for name in ("library", "placement", *builds)]
        objects = [Path(folder, f"{source.stem}.o") for source in sources]
        for done in [
            pool.submit(_run, [*command, "-c", source, "-o", object_file])
            for source, object_file in zip(sources, objects, strict=True)
        ]:
            done.result()
        library = Path(folder, target.name)
        sanitizers = [option for option in options if option.startswith("-fsanitize")]
        _run([*compiler(), "-shared", *sanitizers, *objects, "-o", library])
        library.replace(target)


def digest(builds: Collection[str], options: Sequence[str] = ()) -> str:
    """Of all that a library is made of."""
    made_of = hashlib.sha256(" ".join((*compiler(), *_FLAGS, *builds, *options)).encode())
    for source in sorted(path for path in _FOLDER.iterdir() if path.suffix in {".h", ".cpp"}):
        made_of.update(source.read_bytes())
    return made_of.hexdigest()[:16]


def cached_library(wanted: str, on_compile: Callable[[], None]) -> Path:
    """The library for this processor, from the user's cache, or compiled into it: its two fastest
    builds and the `wanted` one, or with "all" every build. One with every build serves all.

    Raises: as `compile_library`; PermissionError: others may write into the cache.
    """
    defined = _run([*compiler(), "-march=native", "-dM", "-E", "-x", "c++", os.devnull])
    macros = {words[1]: words[2:] for line in defined.splitlines() if (words := line.split())}
    runs = [name for name, macro in BUILDS.items() if not macro or macro in macros]
    fastest = runs[:_BESIDE_EACH_OTHER] if "__clang__" not in macros else ["portable"]
    builds = [name for name in BUILDS if name in fastest or wanted in (name, "all")]
    folder = _own_folder()
    version = hashlib.sha256(" ".join(macros.get("__VERSION__", ())).encode()).hexdigest()[:8]
    library, whole = (folder / f"decoder-{digest(x)}-{version}.so" for x in (builds, BUILDS))
    if whole.exists():
        return whole
    if not library.exists():
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together compile once
            if not library.exists():
                _remove_unfinished(folder)
                on_compile()
                compile_library(library, builds)
    return library


def _own_folder() -> Path:
    """Raises: PermissionError: what is in there may be somebody else's code."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache, "roseinfer", "native")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"others may write into {folder}: make it yours alone")
    return folder


def _remove_unfinished(folder: Path) -> None:
    """What killed compiles have left: whoever holds the lock is the only one that compiles."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        # A compiler that has outlived the process that started it may still write.
        shutil.rmtree(left, ignore_errors=True)


def _cores() -> int:
    return os.cpu_count() or 1


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the decoder into the user's cache.")
    parser.add_argument("--all", action="store_true", help="every build, as the tests want them")
    wanted = "all" if parser.parse_args().all else ""
    try:
        cached_library(wanted, lambda: print("compiling the decoder (once; takes a minute)"))
    except (OSError, subprocess.CalledProcessError) as error:
        # Plain torch does the work then.
        print(f"the decoder is not compiled: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
