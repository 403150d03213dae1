"""`make sanitize`: the compiled library under sanitizers, with GCC's OpenMP and with LLVM's.

Three runs, each in a process of its own, since a sanitizer's runtime must come first:

    address, libgomp   bounds, lifetimes and undefined behaviour, in the native tests and those of
                       quantized weights
    address, libomp    the same, with LLVM's runtime put before torch's, as users preload it
    thread, libomp     data races, in `races.py`

ThreadSanitizer knows nothing of libgomp's barriers and would report every loop. With libomp, archer
(a part of LLVM) tells it of them. Leaks are not looked for: CPython frees little at exit.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.roseinfer.native.builds import FOR_TESTS, ROOT, compile_library

_TESTS = [
    "tests/roseinfer/native",
    "--ignore=tests/roseinfer/native/test_openmp.py",
    "tests/roseinfer/model/test_quantization.py",
    "tests/roseinfer/checkpoints/gguf/test_blocks.py",
]
_PYTEST = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *_TESTS]
_RACES = [sys.executable, "-m", "tests.roseinfer.native.races"]

_COMMON = ("-O1", "-g", "-fno-omit-frame-pointer", *FOR_TESTS)
_ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_THREAD = ("-fsanitize=thread",)


def _of_gcc(name: str) -> str:
    done = subprocess.run(
        ["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _of_llvm(name: str) -> str:
    found = sorted(map(str, Path("/usr/lib").glob(f"llvm-*/lib/{name}")))
    if not found:
        raise SystemExit(f"{name} is missing: apt-get install clang libomp-dev")
    return found[-1]


def _run(title: str, command: list[str], library: str, preload: list[str], **more: str) -> bool:
    print(f"== {title}", flush=True)
    environment = {
        **os.environ,
        "ROSE_TEST_LIBRARY": library,
        "LD_PRELOAD": " ".join(preload),
        # The emulator of AMX handles SIGILL itself.
        "ASAN_OPTIONS": "detect_leaks=0:handle_sigill=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Python, torch and libomp are not instrumented: only what the library does counts.
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:exitcode=66",
        "OMP_NUM_THREADS": "4",
        **more,
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    print(f"== {title}: {'clean' if done.returncode == 0 else 'FAILED'}", flush=True)
    return done.returncode == 0


def main() -> None:
    # What may be missing comes first: compiling takes minutes.
    libomp, archer = _of_llvm("libomp.so.5"), _of_llvm("libarcher.so")
    asan, libstdcxx = _of_gcc("libasan.so"), _of_gcc("libstdc++.so.6")
    address = str(compile_library(*_COMMON, *_ADDRESS))
    thread = str(compile_library(*_COMMON, *_THREAD))
    clean = [
        # libstdc++ too: AddressSanitizer looks for its functions before torch loads it.
        _run("address, libgomp", _PYTEST, address, [asan, libstdcxx]),
        _run("address, libomp", _PYTEST, address, [asan, libstdcxx, libomp]),
        _run(
            "thread, libomp",
            # A fixed layout of memory: ThreadSanitizer has its own in mind.
            ["setarch", "-R", *_RACES],
            thread,
            [_of_gcc("libtsan.so"), libomp],
            OMP_TOOL_LIBRARIES=archer,
        ),
    ]
    sys.exit(0 if all(clean) else 1)


if __name__ == "__main__":
    main()
